//! Templates that loop for ever, nest too deep, or are nonsense.

use proptest::prelude::*;
use stovepipe_chat::{ChatError, ChatTemplate, Message, SpecialTokens};

fn render(source: &str) -> Result<String, ChatError> {
    let tokens = SpecialTokens::new([("eos_token", "</s>")]);
    let messages = [
        Message::new("user", "Hi"),
        Message::new("assistant", "Hello"),
    ];
    ChatTemplate::new(source, "a template", &tokens)?.render(&messages, true)
}

#[test]
fn templates_have_limits() {
    let twice = "{% for i in range(100000) %}{% for j in range(100000) %}";
    let double = "{% set ns = namespace(x='a') %}{% for i in range(100) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}";
    let long = format!(
        "{}x{}",
        "{% if true %}".repeat(100_000),
        "{% endif %}".repeat(100_000)
    );
    for (source, expected) in [
        (
            format!("{twice}{{% endfor %}}{{% endfor %}}"),
            "a template took more than 1000000 instructions",
        ),
        (
            double.to_owned(),
            "a template took more than 1000000 instructions",
        ),
        (
            "{{ 'a' * 100000000000 }}".to_owned(),
            "a template took more than 1000000 instructions",
        ),
        (
            "{% for i in range(40) %}{{ 'a' * 500000 }}{% endfor %}".to_owned(),
            "a template wrote more than 16777216 bytes",
        ),
        (
            "{{ 'a' | indent(1000000000) }}".to_owned(),
            "a template, line 1: invalid operation: an indent",
        ),
        (
            "{% macro f(x) %}{{ f(x) }}{% endmacro %}\n{{ f(1) }}".to_owned(),
            "recursion limit exceeded",
        ),
        (
            format!("{{{{ {} }}}}", "(".repeat(10_000)),
            "a template, line 1: syntax error",
        ),
        (long, "a template, line 1: it has more than 262144 bytes"),
    ] {
        let error = render(&source).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn values_in_values_do_not_overflow_the_stack() {
    let nested = |value: &str, end: &str| {
        let start =
            "{% set ns = namespace(x=[]) %}{% for j in range(50) %}{% for i in range(1000) %}";
        let source = format!("{start}{{% set ns.x = {value} %}}{{% endfor %}}{{% endfor %}}{end}");
        render(&source)
    };
    for value in ["[ns.x]", "{'a': ns.x}", "namespace(x=ns.x)"] {
        assert_eq!(nested(value, "end").unwrap(), "end");
        assert!(nested(value, "{{ ns.x | tojson }}").is_err());
        let _ = nested(value, "{{ ns.x }}");
    }
    let path = format!("{{{{ x{} }}}}", ".y".repeat(100_000));
    assert!(render(&path).is_err());
}

fn source() -> impl Strategy<Value = String> {
    let pieces = [
        "{{",
        "}}",
        "{%",
        "%}",
        "{%-",
        "-%}",
        "{#",
        "#}",
        " if ",
        " for ",
        " in ",
        " set ",
        " endif ",
        " endfor ",
        " macro ",
        " generation ",
        " endgeneration ",
        " raw ",
        " endraw ",
        "messages",
        "message",
        "[0]",
        "[-1]",
        "[1:]",
        ".content",
        ".role",
        " | tojson",
        " | trim",
        "(indent=2)",
        ".strip()",
        ".split('e')",
        "'a'",
        "\"",
        "'",
        "\\",
        "\n",
        " ",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        ",",
        "=",
        "==",
        "+",
        "~",
        "*",
        "%",
        "1",
        "1e400",
        "none",
        "loop.index",
        "é",
        "raise_exception",
        "strftime_now",
        "namespace",
        " is ",
        " not ",
        " and ",
        " else ",
        "range(9)",
        ":",
        "-",
        "**",
        " | indent",
        " | items",
        "{{ messages }}",
        "{% for m in messages %}",
        "{% endfor %}",
        "{{ m.content }}",
        "{% if m.role == 'user' %}",
        "{% endif %}",
        "{{ messages | tojson(indent=",
        ") }}",
        ".title()",
        " | join",
        " | map(attribute='role') | list",
    ];
    let piece = prop_oneof![
        9 => prop::sample::select(pieces.to_vec()).prop_map(str::to_owned),
        1 => any::<char>().prop_map(String::from),
    ];
    prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn no_template_panics(source in source()) {
        for source in [source.clone(), format!("{{{{ {source} }}}}")] {
            if let Err(error) = render(&source) {
                prop_assert!(!error.to_string().contains("panicked"), "{error}: {source:?}");
            }
        }
    }
}
