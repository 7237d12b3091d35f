//! Conversations from a file of the user's.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::Args;
use serde::{Deserialize, Serialize};
use stovepipe::schedule::count;
use stovepipe_chat::{
    ChatError, ChatTemplate, ChatTokenizer, Conversation, Encoder, Example, Examples, Message,
};
use stovepipe_text::Tokenizer;

use super::{
    data_set::{Contents, DataSet, TextData, TextSamples, check},
    examples::sets,
    fingerprint::{fingerprint, hashed},
    text_sets::TextSets,
};
use crate::{
    error::{CliError, usage},
    files::{CHAT_TEMPLATE, SPECIAL_TOKENS, TOKENIZER, TOKENIZER_CONFIG},
    output,
};

/// What templates take for today: the same in each run, and what Llama 3's take if they are not told.
const DAY: &str = "2024-07-26";

/// Conversations, from --chat
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Args)]
#[serde(default, rename_all = "kebab-case")]
pub struct Chat {
    /// JSON lines, each with messages, with a prompt and a completion, or with a text
    #[arg(long, value_name = "FILE")]
    chat: Option<PathBuf>,
    /// The model's tokenizer.json, in a folder with its tokenizer_config.json; if not given, that of --from
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// A chat template in place of the one beside the tokenizer
    #[arg(long, value_name = "FILE")]
    chat_template: Option<PathBuf>,
    /// Share of the conversations, the last ones, kept for testing
    #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
    held_out: f64,
}

impl DataSet for Chat {
    fn contents(&self) -> Contents<'_> {
        Contents::Text(self)
    }

    fn usual_samples(&self) -> usize {
        10_000
    }

    fn check(&self) -> Result<(), CliError> {
        let is_share = |share: f64| share > 0.0 && share < 1.0;
        Ok(check(
            "held-out",
            self.held_out,
            is_share,
            "more than 0 and less than 1",
        )?)
    }

    fn is_located(&self) -> bool {
        self.chat.is_some()
    }

    fn may_change(&self) -> &'static [&'static str] {
        &["chat", "tokenizer", "chat-template"]
    }

    fn adopt(&mut self, folder: &Path, _: usize) {
        self.tokenizer.get_or_insert_with(|| folder.join(TOKENIZER));
    }

    /// All that it needs lies beside it.
    fn set_tokenizer(&mut self, file: PathBuf) {
        (self.tokenizer, self.chat_template) = (Some(file), None);
    }
}

impl Chat {
    pub fn with_tokenizer(file: PathBuf) -> Self {
        Self {
            tokenizer: Some(file),
            ..Self::default()
        }
    }

    fn file(&self) -> Result<&Path, CliError> {
        let file = self.chat.as_deref();
        file.ok_or_else(|| usage!("no conversations: name a file of JSON lines with --chat"))
    }

    /// The folder with the tokenizer.
    fn folder(&self) -> Result<&Path, CliError> {
        let Some(file) = &self.tokenizer else {
            return Err(usage!(
                "no tokenizer: take that of the model with --from, or name a tokenizer.json with \
                 --tokenizer"
            ));
        };
        let folder = file.parent().unwrap_or(Path::new(""));
        Ok(if folder == Path::new("") {
            Path::new(".")
        } else {
            folder
        })
    }

    fn encoder(&self) -> Result<(Encoder, Option<ChatTemplate>), CliError> {
        let folder = self.folder()?;
        let tokenizer = ChatTokenizer::of_folder(folder)?;
        let template = match &self.chat_template {
            Some(path) => Some(ChatTemplate::read(path, folder)?),
            None => match ChatTemplate::of_folder(folder) {
                // Prompts with completions, and texts, need none.
                Err(ChatError::NoTemplate(_)) => None,
                found => Some(found?),
            },
        };
        let template = template.map(|template| Ok::<_, ChatError>(template.with_day(DAY.parse()?)));
        let template = template.transpose()?;
        Ok((Encoder::new(tokenizer, template.clone()), template))
    }

    fn examples(&self, length: usize) -> Result<Examples, CliError> {
        let (encoder, _) = self.encoder()?;
        let length = Some(length.saturating_add(1));
        Ok(Examples::read(self.file()?, &encoder, length)?)
    }

    fn about(&self, examples: &Examples) -> Result<String, CliError> {
        let (file, counts) = (self.file()?.display().to_string(), examples.counts);
        let mut about = file;
        if counts.cut > 0 {
            about += &format!(", {} cut to --length", counts.cut);
        }
        if counts.dropped > 0 {
            about += &format!(", {} without anything to learn left out", counts.dropped);
        }
        Ok(about)
    }

    fn sets(
        &self,
        of_both: [Vec<Example>; 2],
        micro_batches: usize,
        about: &str,
    ) -> Result<TextSets, CliError> {
        let file = self.file()?;
        let content = fs::read(file).map_err(CliError::file(file))?;
        let tokenizer = output::read(&self.folder()?.join(TOKENIZER))?;
        let parts = [
            ("chat", hashed([content])),
            ("tokenizer", hashed([tokenizer])),
        ];
        Ok(sets(of_both, micro_batches, about, fingerprint(parts)))
    }
}

impl TextData for Chat {
    fn tokenizer(&self) -> Result<Tokenizer, CliError> {
        let folder = self.folder()?;
        let file = folder.join(TOKENIZER);
        if !file.is_file() {
            ChatTokenizer::of_folder(folder)?; // says what is there instead
        }
        Ok(Tokenizer::read(&file)?)
    }

    fn tokenizer_file(&self) -> Option<PathBuf> {
        Some(self.folder().ok()?.join(TOKENIZER))
    }

    fn files(&self) -> Vec<(&'static str, PathBuf)> {
        let Ok(folder) = self.folder() else {
            return Vec::new();
        };
        let beside = [TOKENIZER, TOKENIZER_CONFIG, SPECIAL_TOKENS, CHAT_TEMPLATE];
        let mut files = Vec::from(beside.map(|name| (name, folder.join(name))));
        if let Some(template) = &self.chat_template {
            files[3].1.clone_from(template);
        }
        files.retain(|(_, path)| path.is_file());
        files
    }

    /// A user's message, as the template has it, or the beginning of a completion.
    fn prompt(&self, text: &str) -> Result<(Vec<u32>, String), CliError> {
        let (encoder, template) = self.encoder()?;
        let tokens = match template {
            Some(template) => {
                let rendered = template.render(&[Message::new("user", text)], true)?;
                ChatTokenizer::of_folder(self.folder()?)?.encode(&rendered)?
            }
            None => {
                let example = encoder.encode(&Conversation::completion(text, "?")?)?;
                let learned = example.learned.iter().position(|learned| *learned);
                example.tokens[..learned.unwrap_or(0)].to_vec()
            }
        };
        Ok((tokens, format!("{text}\n")))
    }

    fn tokens(&self, _: &Tokenizer) -> Result<Arc<[u32]>, CliError> {
        let examples = self.examples(usize::MAX - 1)?;
        Ok(examples
            .list
            .into_iter()
            .flat_map(|example| example.tokens)
            .collect())
    }

    fn load(&self, samples: TextSamples) -> Result<TextSets, CliError> {
        let examples = self.examples(samples.length)?;
        let about = self.about(&examples)?;
        let mut training = examples.list;
        let kept = (training.len() as f64 * self.held_out).ceil() as usize;
        if kept == 0 || kept >= training.len() {
            return Err(usage!(
                "{about}: {} to learn from, but some are kept for testing: give it more",
                count(training.len(), "conversation")
            ));
        }
        let testing = training.split_off(training.len() - kept);
        self.sets([training, testing], samples.micro_batches, &about)
    }

    fn load_whole(&self, samples: TextSamples) -> Result<TextSets, CliError> {
        let examples = self.examples(samples.length)?;
        let about = self.about(&examples)?;
        let of_both = [examples.list.clone(), examples.list];
        self.sets(of_both, samples.micro_batches, &about)
    }

    fn end(&self) -> Result<Option<u32>, CliError> {
        Ok(ChatTokenizer::of_folder(self.folder()?)?.eos())
    }
}
