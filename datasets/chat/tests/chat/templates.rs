//! Templates: errors, days, and what they read of messages.

use proptest::prelude::*;
use stovepipe_chat::{ChatError, ChatTemplate, Conversation, Day, Message, SpecialTokens};

fn template(source: &str) -> Result<ChatTemplate, ChatError> {
    ChatTemplate::new(
        source,
        "a template",
        &SpecialTokens::new([("eos_token", "</s>")]),
    )
}

#[test]
fn errors_name_the_line() {
    for (source, expected) in [
        ("\n\n{% for %}", "a template, line 3: syntax error: "),
        ("\n{% generation %}", "a template, line 2: syntax error: "),
        ("\n{{ x.y.z }}", "a template, line 2: undefined value"),
        ("{{ 1 | nothing }}", "a template, line 1: unknown filter: "),
        (
            "\n{{ 'a'.nothing() }}",
            "a template, line 2: unknown method: ",
        ),
        ("{{ 1 + 'a' }}", "a template, line 1: invalid operation: "),
        (
            "{% include 'other' %}",
            "a template, line 1: syntax error: ",
        ),
        (
            "\n{{ strftime_now('%Y') }}",
            "a template, line 2: invalid operation: strftime_now: the text would differ",
        ),
        (
            "\n\n{{ raise_exception('No: ' ~ messages[0].role) }}",
            "a template, line 3, refuses the conversation: No: user",
        ),
        (
            "{{ messages | tojson(indent=2, nothing=1) }}",
            "a template, line 1: ",
        ),
        (
            "{{ [x] | tojson }}",
            "a template, line 1: invalid operation: tojson: JSON has no undefined",
        ),
    ] {
        let rendered = template(source)
            .and_then(|template| template.render(&[Message::new("user", "Hi")], false));
        let error = rendered.unwrap_err().to_string();
        assert!(error.starts_with(expected), "{source}: {error}");
    }
}

#[test]
fn a_day_has_no_time() {
    let day: Day = "2024-07-26".parse().unwrap();
    let with_time = template("{{ strftime_now('%d %H') }}")
        .unwrap()
        .with_day(day);
    let error = with_time.render(&[], false).unwrap_err().to_string();
    assert!(error.contains("a day has no %H"), "{error}");
    for text in [
        "2024-02-30",
        "1969-12-31",
        "2024-13-01",
        "2024-1-1",
        "24-01-01",
        "2024/01/01",
        "2024-00-10",
        "",
        "----------",
    ] {
        let error = text.parse::<Day>().unwrap_err();
        assert!(matches!(error, ChatError::NotADay(_)), "{text}");
    }
    // A leap day, and the first and last day of a year.
    let written = |day: &str| {
        let template = template("{{ strftime_now('%a %j') }}").unwrap();
        template
            .with_day(day.parse().unwrap())
            .render(&[], false)
            .unwrap()
    };
    assert_eq!(written("2024-02-29"), "Thu 060");
    assert_eq!(written("1970-01-01"), "Thu 001");
    assert_eq!(written("2100-12-31"), "Fri 365");
    assert_eq!(written("2000-12-31"), "Sun 366");
}

#[test]
fn ends_of_lines_are_jinjas() {
    let rendered = |source: &str| template(source).unwrap().render(&[], false).unwrap();
    assert_eq!(rendered("a\r\nb\rc\n\n"), "a\nb\nc\n");
    assert_eq!(rendered("{% if true %}\r\na{% endif %}\r\n"), "a");
    assert_eq!(rendered(""), "");
}

#[test]
fn conversations_without_messages_are_their_text() {
    let template = template("nothing").unwrap();
    let render = |conversation| template.render_conversation(&conversation, false).unwrap();
    assert_eq!(render(Conversation::completion("a ", "b").unwrap()), "a b");
    assert_eq!(render(Conversation::text("c").unwrap()), "c");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Against another writer of JSON, for what both write in the same way.
    #[test]
    fn json_is_read_back(content in prop::collection::vec(any::<char>(), 0..40), ascii in any::<bool>()) {
        let content: String = content.into_iter().collect();
        let template = template(&format!("{{{{ messages[0] | tojson(ensure_ascii={ascii}) }}}}")).unwrap();
        let written = template.render(&[Message::new("user", &content)], false).unwrap();
        let read: serde_json::Value = serde_json::from_str(&written).unwrap();
        prop_assert_eq!(read["content"].as_str(), Some(&*content));
        prop_assert!(!ascii || written.is_ascii());
    }
}
