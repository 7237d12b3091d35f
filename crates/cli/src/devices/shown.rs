//! The result as a table and as JSON.

use serde_json::{Value, json};
use stovepipe::{pipeline::device::DeviceRates, schedule::format_bytes};

use super::survey::{Found, Survey};
use crate::output::{self, Table};

impl Survey {
    pub(super) fn text(&self) -> String {
        let mut table =
            Table::new("device | is | >memory | >f32 | >bf16 | >f16 | >from host | >to host");
        for found in &self.found {
            table.row(found.row());
        }
        let mut text = format!("{table}");
        if !self.links.is_empty() {
            text += &format!("\n{}", self.link_table());
        }
        let refused = self.found.iter().filter_map(|found| {
            let error = found.facts.as_ref().err()?;
            Some(format!("{}: {error}\n", found.device))
        });
        let absent = self
            .absent
            .iter()
            .map(|(kind, why)| format!("{kind}: {why}\n"));
        let notes: String = refused.chain(absent).collect();
        if !notes.is_empty() {
            text += &format!("\n{notes}");
        }
        text
    }

    fn link_table(&self) -> Table {
        let mut table = Table::new("from | to | >bandwidth | >latency");
        for link in &self.links {
            table.row(vec![
                self.name(link.from).to_owned(),
                self.name(link.to).to_owned(),
                bytes_a_second(link.link.bandwidth),
                output::seconds(link.link.latency),
            ]);
        }
        table
    }

    pub(super) fn json(&self) -> Value {
        let links = self.links.iter().map(|link| {
            json!({
                "from": self.name(link.from),
                "to": self.name(link.to),
                "latency": link.link.latency,
                "bandwidth": link.link.bandwidth,
            })
        });
        let absent = self.absent.iter();
        json!({
            "devices": self.found.iter().map(Found::json).collect::<Vec<_>>(),
            "links": links.collect::<Vec<_>>(),
            "absent": absent.map(|(kind, why)| json!({ "kind": kind, "why": why })).collect::<Vec<_>>(),
        })
    }

    fn name(&self, index: usize) -> &str {
        &self.found[index].device.name
    }
}

impl Found {
    fn kind(&self) -> String {
        match &self.facts {
            Err(_) => "cannot be used, see below".to_owned(),
            Ok(_) if self.is_cpu() => {
                let threads = self.device.threads.unwrap_or(1);
                output::count(threads, "thread", "threads")
            }
            Ok((facts, _)) => {
                let hardware = facts.hardware.as_deref().unwrap_or_default();
                let software = if facts.software {
                    " (software, on the CPU)"
                } else {
                    ""
                };
                format!("{hardware}{software}")
            }
        }
    }

    fn row(&self) -> Vec<String> {
        let free = if self.is_in_main_memory() {
            " free"
        } else {
            ""
        };
        let memory = (self.memory()).map(|memory| format!("{}{free}", format_bytes(memory)));
        let none = DeviceRates::default();
        let rates = self.facts.as_ref().map_or(&none, |(_, rates)| rates);
        let product = |dtype: &str| {
            let product = rates.products.iter().find(|product| product.dtype == dtype);
            product.map_or("-".to_owned(), |product| operations_a_second(product.rate))
        };
        let copy = |rate: Option<f64>| rate.map_or("-".to_owned(), bytes_a_second);
        vec![
            self.device.name.clone(),
            self.kind(),
            memory.unwrap_or_else(|| "unknown".to_owned()),
            product("f32"),
            product("bf16"),
            product("f16"),
            copy(rates.to_device),
            copy(rates.to_host),
        ]
    }

    fn json(&self) -> Value {
        let mut value = match &self.facts {
            Ok((facts, rates)) => json!({
                "hardware": facts.hardware,
                "software": facts.software,
                "memory": self.memory(),
                "largest_tensor": facts.largest_tensor,
                "products": rates.products,
                "from_host": rates.to_device,
                "to_host": rates.to_host,
            }),
            Err(error) => json!({ "error": error }),
        };
        value["name"] = json!(self.device.name);
        if self.is_cpu() {
            value["threads"] = json!(self.device.threads.unwrap_or(1));
        }
        value
    }
}

fn operations_a_second(rate: f64) -> String {
    match rate {
        1e13.. => format!("{:.1} TFLOP/s", rate / 1e12),
        _ => format!("{:.1} GFLOP/s", rate / 1e9),
    }
}

fn bytes_a_second(rate: f64) -> String {
    format!("{:.1} GB/s", rate / 1e9)
}
