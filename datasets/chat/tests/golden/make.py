"""Renders all templates with Hugging Face's transformers. Needs `pip install -r requirements.txt`.

Each line of expected.jsonl is one rendering: the template, the index of the conversation, whether the generation prompt is
added, and the text, or the message of an error."""

import datetime
import json
import pathlib

import jinja2
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

HERE = pathlib.Path(__file__).parent


class Day(datetime.datetime):
    """Today is the day of the tests."""

    @classmethod
    def now(cls):
        return cls(2024, 7, 26)


chat_template_utils.datetime = Day

tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(models.WordLevel({"<unk>": 0, "<s>": 1, "</s>": 2}, unk_token="<unk>")),
    bos_token="<s>",
    eos_token="</s>",
    unk_token="<unk>",
)


def render(template, line, prompt):
    conversation = json.loads(line)
    # As the crate does it: the texts of parts are joined.
    for message in conversation["messages"]:
        if isinstance(message.get("content"), list):
            message["content"] = "".join(part["text"] for part in message["content"])
    try:
        return {
            "text": tokenizer.apply_chat_template(
                conversation["messages"],
                tools=conversation.get("tools"),
                chat_template=template,
                tokenize=False,
                add_generation_prompt=prompt,
            )
        }
    except jinja2.TemplateError as error:
        return {"error": error.message}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


lines = (HERE / "conversations.jsonl").read_text(encoding="utf-8").splitlines()
with open(HERE / "expected.jsonl", "w", encoding="utf-8") as file:
    for path in sorted((HERE / "templates").glob("*.jinja")):
        for index, line in enumerate(lines):
            for prompt in [False, True]:
                rendered = render(path.read_text(encoding="utf-8"), line, prompt)
                row = {"template": path.stem, "conversation": index, "prompt": prompt, **rendered}
                print(json.dumps(row, ensure_ascii=False), file=file)
