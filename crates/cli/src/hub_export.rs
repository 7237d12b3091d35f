//! Writes folders as the Hugging Face Hub has them: of whole models, and of adapters.

use std::{
    collections::{BTreeSet, HashMap},
    fs,
    path::{Path, PathBuf},
};

use burn::{
    module::Module,
    store::{ModuleSnapshot, bridge, burn_pack},
};
use stovepipe::{
    pipeline::Pipeline,
    train::{
        TrainError,
        weights::{Change, rewrite_folder, save_some},
    },
};

use crate::{
    data::Contents,
    error::{CliError, usage},
    files::{ADAPTER_BASE, CHAT_TEMPLATE, HUB_CONFIG, TOKENIZER},
    models::{Hub, LanguageModel},
};

/// The weights of a model and of an adapter.
const MODEL: &str = "model.safetensors";
const ADAPTER: &str = "adapter_model.safetensors";

/// The table of the embedding, and that of the softmax.
const TABLE: &str = "model.embed_tokens.weight";
const HEAD: &str = "lm_head.weight";

/// A model to write.
pub struct HubExport<'a, L: LanguageModel> {
    pub hub: Hub,
    pub pipeline: Pipeline<L>,
    /// What its training started from.
    pub base: Option<&'a Path>,
    /// The checksum of the weights below its adapter.
    pub base_sum: Option<String>,
    pub tokenizer: Contents<'a>,
}

impl<L: LanguageModel> HubExport<'_, L> {
    /// Writes an adapter, or the whole model. The folder must be new.
    pub fn write(&self, out: &Path, merge: bool) -> Result<(), CliError> {
        if out.exists() {
            let out = out.display();
            return Err(usage!("{out} exists: name a new folder with --out"));
        }
        let done = self.write_new(out, merge);
        if done.is_err() {
            let _ = fs::remove_dir_all(out);
        }
        done
    }

    fn write_new(&self, out: &Path, merge: bool) -> Result<(), CliError> {
        let Hub { config, lora } = &self.hub;
        let base = self.base.filter(|base| base.join(HUB_CONFIG).is_file());
        if let Some(lora) = lora.as_ref().filter(|_| !merge) {
            fs::create_dir(out).map_err(CliError::file(out))?;
            save_some(&self.pipeline, &out.join(ADAPTER), |name| {
                config.peft_name(name)
            })?;
            if let Some(sum) = &self.base_sum {
                let path = out.join(ADAPTER_BASE);
                fs::write(&path, format!("{sum}\n")).map_err(CliError::file(&path))?;
            }
            let base = base.map(|base| base.display().to_string());
            return Ok(lora.save(out, base.as_deref())?);
        }
        match base {
            Some(base) => self.rewrite(base, out),
            None if merge => {
                let plain = out.with_added_extension("partial");
                let _ = fs::remove_dir_all(&plain); // of an export that was stopped
                let done = (self.new_folder(&plain)).and_then(|()| self.rewrite(&plain, out));
                let _ = fs::remove_dir_all(&plain);
                done
            }
            None => self.new_folder(out),
        }
    }

    /// The folder `from` with the trained numbers: of an adapter, with its part added.
    fn rewrite(&self, from: &Path, out: &Path) -> Result<(), CliError> {
        let trained = match self.hub.lora {
            Some(_) => HashMap::new(),
            None => self.tensors(),
        };
        let failed = |error: burn_pack::Error| TrainError::format(out, error);
        let mut left: BTreeSet<_> = trained.keys().cloned().collect();
        rewrite_folder(from, out, |name| {
            // A folder may have a tied table twice.
            let name = match name {
                HEAD if self.hub.config.tied => TABLE,
                name => name,
            };
            left.remove(name);
            if let Some(delta) = self.delta(name) {
                return Ok(Some(Change::Plus(delta.into_data())));
            }
            let data = trained.get(name).map(bridge::to_data).transpose();
            Ok(data.map_err(failed)?.map(Change::To))
        })?;
        if let Some(name) = left.first() {
            let from = from.display();
            return Err(usage!("{from} has no {name}, so there is no place for it"));
        }
        // The template that it was trained with, if it is another one.
        let files = match self.tokenizer {
            Contents::Text(text) => text.files(),
            Contents::Images(_) => Vec::new(),
        };
        for (name, file) in files.into_iter().filter(|(name, _)| *name == CHAT_TEMPLATE) {
            fs::copy(&file, out.join(name)).map_err(CliError::file(&file))?;
        }
        Ok(())
    }

    /// The model's tensors by their names in the folder, read when they are written.
    fn tensors(&self) -> HashMap<String, burn_pack::Tensor> {
        let all = self.pipeline.valid().collect(None, None, true).into_iter();
        let named =
            all.filter_map(|tensor| Some((self.hub.config.hub_name(&tensor.name)?, tensor)));
        named.collect()
    }

    /// What the adapter adds to a tensor.
    fn delta(&self, name: &str) -> Option<burn::tensor::Tensor<2>> {
        let rest = name
            .strip_prefix("model.layers.")?
            .strip_suffix(".weight")?;
        let (block, linear) = rest.split_once('.')?;
        let layer = block.parse::<usize>().ok()?.checked_add(1)?;
        self.pipeline.layers().get(layer)?.delta(linear)
    }

    /// A folder of a model that had none: its configuration, its weights in f32, and its tokenizer.
    fn new_folder(&self, out: &Path) -> Result<(), CliError> {
        let config = &self.hub.config;
        fs::create_dir(out).map_err(CliError::file(out))?;
        let path = out.join(HUB_CONFIG);
        fs::write(&path, config.to_json()).map_err(CliError::file(&path))?;
        save_some(&self.pipeline, &out.join(MODEL), |name| {
            config.hub_name(name)
        })?;
        if let Some(file) = self.tokenizer_file() {
            let path = out.join(TOKENIZER);
            fs::copy(&file, &path).map_err(CliError::file(&file))?;
        }
        Ok(())
    }

    fn tokenizer_file(&self) -> Option<PathBuf> {
        match self.tokenizer {
            Contents::Text(text) => text.tokenizer_file(),
            Contents::Images(_) => None,
        }
    }
}
