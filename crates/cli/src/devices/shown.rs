//! The result as a table and as JSON.

use serde_json::{Value, json};
use stovepipe::{
    pipeline::device::DeviceRates,
    schedule::{count, format_bytes},
};

use super::survey::{Found, MeasuredLink, Survey};
use crate::output::{self, Table};

impl Survey {
    pub(super) fn text(&self) -> String {
        let columns = "device | is | >memory | >f32 | >bf16 | >f16 | >from host | >to host";
        let has_hosts = self.found.iter().any(|found| !found.known.host.is_empty());
        let host = if has_hosts { "host | " } else { "" };
        let mut table = Table::new(&format!("{host}{columns}"));
        for found in &self.found {
            let host = has_hosts.then(|| found.known.host.clone());
            table.row(host.into_iter().chain(found.row()).collect());
        }
        let mut text = format!("{table}");
        if !self.links.is_empty() || !self.process_links.is_empty() {
            text += &format!("\n{}", self.link_table());
        }
        let refused = self.found.iter().filter_map(|found| {
            let error = found.known.facts.as_ref().err()?;
            Some(format!("{}: {error}\n", found.device))
        });
        let absent = self.absent.iter();
        let absent = absent.map(|(kind, why)| format!("{kind}: {why}\n"));
        let notes: String = refused.chain(absent).collect();
        if !notes.is_empty() {
            text += &format!("\n{notes}");
        }
        text
    }

    fn link_table(&self) -> Table {
        let mut table = Table::new("from | to | >bandwidth | >latency");
        let mut row = |from: String, to: String, bandwidth: f64, latency: f64| {
            let numbers = [bytes_a_second(bandwidth), output::seconds(latency)];
            table.row([from, to].into_iter().chain(numbers).collect());
        };
        for MeasuredLink {
            from,
            to,
            latency,
            bandwidth,
        } in &self.links
        {
            row(from.clone(), to.clone(), *bandwidth, *latency);
        }
        for (rank, link) in self.process_links.iter().enumerate() {
            let [from, to] = [rank, rank + 1].map(|rank| format!("process {rank}"));
            row(from, to, link.bandwidth, link.latency);
        }
        table
    }

    pub(super) fn json(&self) -> Value {
        let process_links = self.process_links.iter().enumerate().map(|(rank, link)| {
            json!({
                "from": rank,
                "to": rank + 1,
                "latency": link.latency,
                "bandwidth": link.bandwidth,
            })
        });
        let absent = self.absent.iter();
        json!({
            "devices": self.found.iter().map(Found::json).collect::<Vec<_>>(),
            "links": self.links,
            "process_links": process_links.collect::<Vec<_>>(),
            "absent": absent.map(|(kind, why)| json!({ "kind": kind, "why": why })).collect::<Vec<_>>(),
        })
    }
}

impl Found {
    fn kind(&self) -> String {
        match &self.known.facts {
            Err(_) => "cannot be used, see below".to_owned(),
            Ok(_) if self.is_cpu() => {
                let threads = self.device.threads.unwrap_or(1);
                format!(
                    "{} of {}",
                    count(threads, "thread"),
                    count(self.known.cores, "core")
                )
            }
            Ok((facts, _)) => {
                let hardware = facts.hardware.as_deref().unwrap_or_default();
                let software = facts.software.then_some(" (software, on the CPU)");
                format!("{hardware}{}", software.unwrap_or_default())
            }
        }
    }

    fn row(&self) -> Vec<String> {
        let is_main = self.is_in_main_memory();
        let free = if is_main { " free" } else { "" };
        let memory = (self.memory()).map(|memory| format!("{}{free}", format_bytes(memory)));
        let none = DeviceRates::default();
        let rates = self.known.facts.as_ref().map_or(&none, |(_, rates)| rates);
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
        let mut value = match &self.known.facts {
            Ok((facts, rates)) => json!({
                "hardware": facts.hardware,
                "software": facts.software,
                "memory": self.memory(),
                "largest_tensor": facts.largest_tensor,
                "rounds_products": facts.rounds_products,
                "products": rates.products,
                "from_host": rates.to_device,
                "to_host": rates.to_host,
            }),
            Err(error) => json!({ "error": error }),
        };
        value["name"] = json!(self.device.name);
        if !self.known.host.is_empty() {
            value["host"] = json!(self.known.host);
        }
        if self.is_cpu() {
            value["threads"] = json!(self.device.threads.unwrap_or(1));
            value["cores"] = json!(self.known.cores);
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
