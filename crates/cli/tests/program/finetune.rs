//! Pretrained decoders, as a user fine-tunes them: from a folder to an adapter, and to a folder again.

use std::{collections::BTreeMap, fs, path::Path};

use serde_json::{Value, json};
use stovepipe::plan::Profile;

use crate::running::{Here, check_contains, check_refused, root, succeeds};

/// Tiny random models that `transformers` wrote.
const MODELS: &str = "models/decoder/tests/golden";
/// A template with special tokens around each turn.
const TEMPLATE: &str = "{% for m in messages %}<|begin|>{{ m.role }} {{ m.content }}<|end|>\n\
                        {% endfor %}{% if add_generation_prompt %}<|begin|>assistant {% endif %}";
const SMALL: &str = "--length 20 --batch-size 4 --epochs 2 --lr 0.01";

/// A folder `model` of the Hub with a tokenizer and a chat template, and `chat.jsonl`.
pub fn with_model(name: &str) -> Here {
    let here = Here::new();
    let model = here.join("model");
    fs::create_dir(&model).unwrap();
    for entry in fs::read_dir(root().join(MODELS).join(name)).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() && !path.ends_with("golden.safetensors") {
            fs::copy(&path, model.join(path.file_name().unwrap())).unwrap();
        }
    }
    let words =
        "[UNK] user assistant what is after one two three four five six seven eight nine ten";
    let mut vocabulary = serde_json::Map::new();
    for (number, word) in words.split(' ').enumerate() {
        vocabulary.insert(word.to_owned(), number.into());
    }
    let special = |id: usize, content: &str| {
        json!({ "id": id, "content": content, "special": true, "single_word": false,
                "lstrip": false, "rstrip": false, "normalized": false })
    };
    let tokenizer = json!({
        "model": { "type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]" },
        "pre_tokenizer": { "type": "Whitespace" },
        "added_tokens": [special(16, "<|begin|>"), special(17, "<|end|>")],
    });
    here.write("model/tokenizer.json", tokenizer.to_string());
    here.write("model/tokenizer_config.json", r#"{"eos_token": "<|end|>"}"#);
    here.write("model/chat_template.jinja", TEMPLATE);
    let names: Vec<_> = words.split(' ').skip(6).collect();
    let mut lines = String::new();
    for pair in names.windows(2).cycle().take(20) {
        let turn = |role: &str, content: &str| json!({ "role": role, "content": content });
        let question = turn("user", &format!("what is after {}", pair[0]));
        let line = json!({ "messages": [question, turn("assistant", pair[1])] });
        lines += &format!("{line}\n");
    }
    here.write("chat.jsonl", lines);
    here
}

fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, fs::read(path).unwrap())
        })
        .collect();
    files.sort();
    files
}

/// The tensors of a file: type, shape and bytes.
type Tensors = BTreeMap<String, (safetensors::Dtype, Vec<usize>, Vec<u8>)>;

fn tensors(file: &Path) -> Tensors {
    let bytes = fs::read(file).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let all = file.tensors().into_iter();
    all.map(|(name, view)| {
        (
            name,
            (view.dtype(), view.shape().to_vec(), view.data().to_vec()),
        )
    })
    .collect()
}

fn views(tensors: &Tensors) -> Vec<(&String, safetensors::tensor::TensorView<'_>)> {
    let views = tensors.iter().map(|(name, tensor)| {
        let (dtype, shape, bytes) = tensor;
        (
            name,
            safetensors::tensor::TensorView::new(*dtype, shape.clone(), bytes).unwrap(),
        )
    });
    views.collect()
}

/// The names of the tensors in a file.
fn tensor_names(file: &Path) -> Vec<String> {
    let bytes = fs::read(file).unwrap();
    let (length, rest) = bytes.split_at(8);
    let length = u64::from_le_bytes(length.try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&rest[..length]).unwrap();
    let mut names: Vec<_> = header.as_object().unwrap().keys().cloned().collect();
    names.retain(|name| name != "__metadata__");
    names
}

/// The same adapter files for any cut, schedule and recomputation.
#[test]
fn an_adapter_is_the_same_under_any_cut() {
    let here = with_model("qwen3");
    let mut expected = None;
    for (index, way) in [
        "--stages 1 --micro-batches 4",
        "--stages 2",
        "--stages 3 --schedule gpipe --recompute always",
        "--stages 4 --recompute never",
        "--stages 2 --schedule zb-h1 --base f16",
    ]
    .iter()
    .enumerate()
    {
        here.run(&format!(
            "train --from model --data chat --chat chat.jsonl {SMALL} --lora-rank 2 --lora-dropout 0.2 \
             --balance even --micro-batches 4 {} --out run-{index}",
            way.replace("--micro-batches 4", "")
        ));
        here.run(&format!("export run-{index} --out adapter-{index}"));
        let found = files(&here.join(format!("adapter-{index}")));
        let names: Vec<_> = found.iter().map(|(name, _)| name.as_str()).collect();
        let expected_names = [
            "adapter_config.json",
            "adapter_model.safetensors",
            "base.sha256",
        ];
        assert_eq!(names, expected_names);
        let expected = expected.get_or_insert_with(|| found.clone());
        assert!(*expected == found, "{way}");
    }
    // The table of words is in the model twice, and is left out twice.
    let names = tensor_names(&here.join("run-0/model.safetensors"));
    assert!(
        names.iter().all(|name| name.contains(".lora.")),
        "{names:?}"
    );
    let config = here.json("adapter-0/adapter_config.json");
    assert_eq!(
        (&config["r"], &config["lora_alpha"]),
        (&json!(2), &json!(4.0))
    );
    assert!(
        config["base_model_name_or_path"]
            .as_str()
            .unwrap()
            .ends_with("model")
    );
}

#[test]
fn a_folder_becomes_an_adapter_and_a_folder_again() {
    let here = with_model("qwen2");
    let train = "train --data chat --chat chat.jsonl --balance even";
    let said = here.run(&format!(
        "{train} --from model {SMALL} --lora-rank 2 --out run"
    ));
    check_contains(
        &said.err,
        &[
            "chat.jsonl: 18 examples to train on, 2 to test with",
            "starting from model",
        ],
    );
    check_contains(&said.out, &["of 2 answers are exact"]);
    let of_run = here.json_of("eval run");
    assert_eq!(of_run["exact_answers"]["all"], 2);

    // An adapter beside its base, and both in one, are the run's model.
    here.run("export run --out adapter");
    here.run("export run --merge --out merged");
    let chat = "--data chat --chat chat.jsonl --length 20 --batch-size 4 --all";
    let all = here.json_of("eval run --all");
    let loss = |json: &Value| json["test"]["loss"].as_f64().unwrap();
    let beside = here.json_of(&format!("eval model --adapter adapter {chat}"));
    assert_eq!(beside, all);
    let merged = here.json_of(&format!("eval merged {chat}"));
    assert!((loss(&merged) - loss(&all)).abs() < 1e-4, "{merged} {all}");
    let base = here.json_of(&format!("eval model {chat}"));
    assert!(loss(&base) > loss(&all) + 0.1, "{base} {all}");

    // What an adapter does not change is the same to the byte.
    for name in ["config.json", "tokenizer.json", "chat_template.jinja"] {
        assert_eq!(
            here.bytes(&format!("merged/{name}")),
            here.bytes(&format!("model/{name}"))
        );
    }
    let greedy = "--temperature 0 --tokens 5 --prompt one";
    assert_eq!(
        here.succeed(&format!("eval run {greedy}")),
        here.succeed(&format!(
            "eval model --adapter adapter --data chat --chat chat.jsonl {greedy}"
        ))
    );

    // A prompt is a user's message, and the run has all that it needs for it.
    let answer = here.succeed(&format!("eval run {greedy}"));
    assert!(
        answer.starts_with("one\n") && !answer.contains("<|end|>"),
        "{answer}"
    );

    // What is not new, and what has changed, is refused.
    here.refuse(
        "export run --out adapter",
        "adapter exists: name a new folder",
    );
    let other = here.bytes("merged/model.safetensors");
    fs::rename(here.join("model/model.safetensors"), here.join("original")).unwrap();
    here.write("model/model.safetensors", other);
    for command in [
        "export run --merge --out no",
        "eval run",
        "train --resume --out run --epochs 3",
    ] {
        let expected =
            "model has changed since the adapter was trained: name the weights from then";
        here.refuse(command, expected);
    }
    assert!(!here.join("no").exists());
    fs::rename(here.join("original"), here.join("model/model.safetensors")).unwrap();

    // A run keeps its adapter alone, and states of its optimizer. The weights below it may move.
    let newest = fs::read_dir(here.join("run/checkpoints"))
        .unwrap()
        .last()
        .unwrap();
    let states = newest
        .unwrap()
        .path()
        .join("optimizer-00001-of-00002.safetensors");
    let names = tensor_names(&states);
    assert!(
        names.len() > 4 && names.iter().all(|name| name.contains(".lora.")),
        "{names:?}"
    );
    let size = |file: &str| here.bytes(file).len();
    assert!(size("run/model.safetensors") < size("model/model.safetensors") / 2);
    fs::rename(here.join("model"), here.join("moved")).unwrap();
    here.refuse("eval run", "model: No such file");
    assert_eq!(here.json_of("eval run --from moved"), of_run);
    let said = here.run("train --resume --out run --epochs 3 --from moved");
    check_contains(&said.err, &["resuming after 2 epochs"]);
    fs::rename(here.join("moved"), here.join("model")).unwrap();
    here.refuse(
        &format!("{train} --from run --out no"),
        "run is a run with an adapter",
    );

    // The configuration alone is enough to inspect a model.
    fs::create_dir(here.join("bare")).unwrap();
    let mut config = here.json("model/config.json");
    config["vocab_size"] = 300.into();
    here.write("bare/config.json", config.to_string());
    let said = here.succeed("train --from bare --lora-rank 2 --length 20 --dry-run");
    check_contains(&said, &["0 Embed", "3 Head"]);

    // Training goes on from the adapter.
    let said = here.run(&format!(
        "{train} --from model --adapter adapter {SMALL} --out more"
    ));
    check_contains(
        &said.err,
        &["starting from model, with the adapter adapter"],
    );
    assert!(loss(&here.json_of("eval more --all")) < loss(&all));

    // All weights are trained without one.
    here.run(&format!("{train} --from model {SMALL} --out full"));
    here.run("export full --out whole");
    let whole = here.json_of(&format!("eval whole {chat}"));
    assert_eq!(whole, here.json_of("eval full --all"));
    let expected = "--from is not for eval, since it is the run's own";
    here.refuse("eval full --from model", expected);
}

/// A small decoder from scratch, and the adapter that the documentation has, on fewer numbers.
#[test]
fn a_decoder_from_scratch_gets_an_adapter() {
    let here = Here::new();
    let model = "--layers 1 --width 16 --heads 2 --key-heads 1 --length 50";
    here.run(&format!(
        "train --model decoder {model} --epochs 1 --lr 1e-3 --out base"
    ));
    let said = here.run("train --from base --data numbers --lora-rank 2 --epochs 1 --out run");
    check_contains(&said.out, &["of 199 answers are exact"]);
    here.run("export run --merge --out merged");
    let config = here.json("merged/config.json");
    assert_eq!(
        (&config["model_type"], &config["num_key_value_heads"]),
        (&json!("llama"), &json!(1))
    );
    let merged = here.json_of("eval merged --data numbers --length 50 --batch-size 16");
    let own = here.json_of("eval run");
    let loss = |json: &Value| json["test"]["loss"].as_f64().unwrap();
    assert!((loss(&merged) - loss(&own)).abs() < 1e-4, "{merged} {own}");
}

/// `config.json` alone says what is measured. The loss needs a few logits at a time, so the last layer does not count
/// all of them.
#[test]
fn a_folder_is_measured_for_a_plan() {
    const VOCABULARY: u64 = 4000;
    let here = with_model("llama");
    let mut config = here.json("model/config.json");
    config["vocab_size"] = VOCABULARY.into();
    here.write("model/config.json", config.to_string());
    fs::remove_file(here.join("model/model.safetensors")).unwrap();
    here.run(
        "plan --measure --from model --length 16 --lora-rank 2 --base f16 --batch-size 64 \
         --schedules 1f1b --out plan.toml",
    );
    let profile = Profile::from_toml(&here.read("profile.toml")).unwrap();
    let [first, .., last] = profile.layers.as_slice() else {
        panic!("{profile:?}")
    };
    let table = 2 * VOCABULARY * config["hidden_size"].as_u64().unwrap();
    assert!(
        (table..table + 100).contains(&first.parameters),
        "{first:?}"
    );
    assert_eq!((first.trained, last.trained), (Some(0), Some(0)));
    let logits = 4 * 8 * 16 * VOCABULARY; // a micro-batch has 8 samples
    assert!(last.kept.unwrap() < logits / 8, "{last:?}");
    here.run(
        "train --plan plan.toml --from model --data chat --chat chat.jsonl --length 16 --lora-rank 2 \
         --dry-run",
    );
    here.refuse("plan --from model", "--measure");
    here.refuse(
        "plan --measure --model decoder --adapter model",
        "adapter has no effect without --from",
    );
}

/// A folder may have a tied table twice: both are written. So is the template that was trained with.
#[test]
fn an_export_has_all_that_changed() {
    let here = with_model("llama");
    let table = "model.embed_tokens.weight";
    let model = tensors(&here.join("model/model.safetensors"));
    let mut twice = model.clone();
    twice.insert("lm_head.weight".to_owned(), model[table].clone());
    fs::write(
        here.join("model/model.safetensors"),
        safetensors::serialize(views(&twice), None).unwrap(),
    )
    .unwrap();
    here.write(
        "own.jinja",
        TEMPLATE.replace("{{ m.role }} ", "{{ m.role }} is "),
    );
    let chat = "--data chat --chat chat.jsonl --chat-template own.jinja";
    here.run(&format!("train --from model {chat} {SMALL} --out run"));
    here.run("export run --out folder");
    let written = tensors(&here.join("folder/model.safetensors"));
    assert_eq!(written.len(), twice.len());
    assert!(written[table] == written["lm_head.weight"]);
    assert!(written[table] != model[table]);
    assert_eq!(
        here.read("folder/chat_template.jinja"),
        here.read("own.jinja")
    );
    here.run("eval folder --prompt one --tokens 2");

    here.run(&format!(
        "train --from model {chat} {SMALL} --lora-rank 2 --out adapted"
    ));
    here.run("export adapted --merge --out merged");
    assert_eq!(
        here.read("merged/chat_template.jinja"),
        here.read("own.jinja")
    );
    // Of an adapter that has learned nothing, no tensor changes, in whatever type.
    here.run(&format!(
        "train --from model {chat} {SMALL} --lora-rank 2 --lr 1e-30 --max-steps 1 --out still"
    ));
    here.run("export still --merge --out same");
    let [before, after] = ["model", "same"]
        .map(|folder| fs::read(here.join(folder).join("model.safetensors")).unwrap());
    assert!(before == after);

    twice.get_mut("lm_head.weight").unwrap().2[1] ^= 1;
    let file = safetensors::serialize(views(&twice), None).unwrap();
    fs::write(here.join("model/model.safetensors"), file).unwrap();
    here.refuse(
        &format!("train --from model {chat} --out no"),
        "embed_tokens.weight and lm_head.weight are one in this model, but not in the file",
    );
}

/// As many answers are exact as the model gives when it is asked for one after the other.
#[test]
fn exact_answers_are_those_that_a_prompt_gets() {
    let here = with_model("qwen3");
    let lines: Vec<_> = here.read("chat.jsonl").lines().map(str::to_owned).collect();
    // One is asked after twice, with other answers: one of both is wrong, whatever is learned.
    let other = lines[0].replace("two", "ten");
    let lines = [&lines[0], &other, &lines[1], &lines[2], &lines[3]].map(String::as_str);
    here.write("few.jsonl", lines.join("\n"));
    here.run(
        "train --from model --data chat --chat few.jsonl --held-out 0.2 --length 20 --batch-size 4 \
         --micro-batches 2 --epochs 60 --lr 0.01 --out run",
    );
    let is_right = |line: &&str| {
        let line: Value = serde_json::from_str(line).unwrap();
        let said = |turn: usize| {
            line["messages"][turn]["content"]
                .as_str()
                .unwrap()
                .to_owned()
        };
        let mut command = here.typed("eval run --temperature 0 --tokens 5 --json --prompt");
        command.arg(said(0));
        let answer: Value = serde_json::from_str(&succeeds(command).out).unwrap();
        answer["text"].as_str().unwrap().trim() == said(1)
    };
    let right = lines.into_iter().filter(is_right).count();
    assert!((1..5).contains(&right), "{right}");
    let text = here.succeed("eval run --all --batch-size 3");
    assert!(
        text.contains(&format!("{right} of 5 answers")),
        "{right}: {text}"
    );
}

/// An adapter of this program knows the weights below it; one of `peft` has their name alone.
#[test]
fn an_adapter_of_another_base_is_refused() {
    let here = with_model("llama");
    let chat = format!("--data chat --chat chat.jsonl {SMALL}");
    here.run(&format!(
        "train --from model {chat} --lora-rank 2 --out run"
    ));
    here.run("export run --out adapter");
    here.run(&format!(
        "train --from model {chat} --max-steps 1 --out other"
    ));
    here.run("export other --out folder");
    let line = format!("train --from folder --adapter adapter {chat} --out no");
    here.refuse(
        &line,
        "the adapter adapter was trained above other weights than folder",
    );
    fs::remove_file(here.join("adapter/base.sha256")).unwrap();
    let said = here.run(&line);
    check_contains(
        &said.err,
        &["starting from folder, with the adapter adapter for "],
    );
}

#[test]
fn what_cannot_be_fine_tuned_is_refused() {
    let here = with_model("qwen2");
    here.write("bad.jsonl", "{\"messages\": []}\n");
    here.write("broken.jsonl", "{\"text\": \"one\"}\n{\"text\": \n");
    fs::create_dir(here.join("empty")).unwrap();
    here.refuse(
        "train --from model --data chat --out no",
        "no conversations: name a file",
    );
    here.refuse_all(
        "train --from model --data chat --out no",
        "
        --chat nowhere.jsonl => nowhere.jsonl
        --chat broken.jsonl => broken.jsonl:2
        --chat bad.jsonl => bad.jsonl:1
        --chat chat.jsonl --length 65 => length is 65, but the model has 64 positions
        --chat chat.jsonl --layers 3 => layers is what the model of --from has: leave it out
        --chat chat.jsonl --base bf16 => base is for weights of --from that an adapter leaves as they are
        --chat chat.jsonl --lora-rank 2 --lora-targets c_attn => target_modules has c_attn, which matches no
        --chat chat.jsonl --adapter nowhere => nowhere/adapter_config.json
        --chat chat.jsonl --lora-alpha 8 => lora-alpha has no effect without --lora-rank
        --chat chat.jsonl --lora-rank 2 --freeze body => freeze has no effect with an adapter
        --chat chat.jsonl --allow-missing *norm* => allow-missing: a folder of the Hugging Face Hub has all
        ",
    );
    here.refuse_all(
        "train --model decoder --out no",
        "
        --from empty => empty is not a run, and has no config.json
        --data chat --chat chat.jsonl => no tokenizer: take that of the model with --from
        --heads 3 => 3 heads cannot share a width of 128
        --adapter empty => adapter has no effect without --from
        --from nowhere => nowhere: No such file
        --lora-rank 2 --lora-dropout 1 => lora_dropout is 1, not from 0 to less than 1
        ",
    );
    here.refuse_all(
        "eval model --data chat --chat chat.jsonl",
        "
        --prompt one --top-p 0 => top-p must be more than 0 and at most 1
        --prompt one --top-p 1.5 => top-p must be more than 0 and at most 1
        --averaged => is not a run, but weights
        ",
    );
    here.refuse(
        "train --from empty --out no",
        "empty is not a run, and has no config.json",
    );
    let long = "one ".repeat(70);
    let mut command = here.typed("eval model --data chat --prompt");
    command.arg(long);
    check_refused(
        command,
        "tokens, but the model has 64 positions: shorten it",
    );
    for (template, says) in [
        ("{{ raise_exception('no roles') }}", "no roles"),
        (
            "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
            "template",
        ),
        ("{{ messages | length }}{{ messages[-1].content }}", "turn"),
    ] {
        here.write("model/chat_template.jinja", template);
        here.refuse(
            "train --from model --data chat --chat chat.jsonl --out no",
            says,
        );
    }
    let tokenizer = here.read("model/tokenizer.json");
    here.write(
        "model/tokenizer.json",
        tokenizer.replace(r#""ten":15"#, r#""ten":15,"eleven":5000"#),
    );
    here.refuse(
        "train --from model --data chat --chat chat.jsonl --out no",
        "5001",
    );
    fs::remove_file(here.join("model/tokenizer.json")).unwrap();
    here.refuse(
        "train --from model --data numbers --out no",
        "model/tokenizer.json",
    );
    here.write("model/tokenizer.model", "");
    here.refuse(
        "train --from model --data chat --chat chat.jsonl --out no",
        "tokenizer.model",
    );
    let config = here.read("model/config.json").replace("qwen2", "gemma");
    here.write("model/config.json", config);
    here.refuse(
        "train --from model --out no",
        "model_type is gemma: known are llama",
    );
    assert!(!here.join("no").exists());
}
