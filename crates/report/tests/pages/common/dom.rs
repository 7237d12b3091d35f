//! A page as a tree of elements, read with the tokenizer of html5gum.

use std::collections::BTreeMap;

use html5gum::{DefaultEmitter, Token, Tokenizer};

/// Elements that have no end tag.
const VOID: [&str; 5] = ["br", "img", "input", "link", "meta"];

#[derive(Debug, Default)]
pub struct Element {
    pub name: String,
    pub attributes: BTreeMap<String, String>,
    pub children: Vec<Element>,
    /// Its text, including that of its children.
    pub text: String,
}

impl Element {
    /// Panics on parse errors, and on elements that do not nest.
    pub fn parse(page: &str) -> Self {
        let mut emitter = DefaultEmitter::default();
        emitter.naively_switch_states(true);
        let mut open = vec![Self::default()];
        for token in Tokenizer::new_with_emitter(page, emitter) {
            match token.unwrap() {
                Token::StartTag(tag) => {
                    let attributes = tag.attributes.iter();
                    let attributes = attributes.map(|(name, value)| (text(name), text(value)));
                    let element = Self {
                        name: text(&tag.name),
                        attributes: attributes.collect(),
                        ..Self::default()
                    };
                    let is_void = VOID.contains(&element.name.as_str());
                    open.push(element);
                    if is_void {
                        close(&mut open);
                    }
                }
                Token::EndTag(tag) => {
                    let name = &open.last().unwrap().name;
                    assert_eq!(*name, text(&tag.name), "an end tag without its start tag");
                    close(&mut open);
                }
                Token::String(string) => open.last_mut().unwrap().text += &text(&string),
                Token::Doctype(doctype) => assert_eq!(text(&doctype.name), "html"),
                Token::Comment(comment) => panic!("a comment: {comment:?}"),
                Token::Error(error) => panic!("{error:?}"),
            }
        }
        assert_eq!(open.len(), 1, "not closed: {}", open.last().unwrap().name);
        open.remove(0)
    }

    /// All elements, in the page's order.
    pub fn all(&self) -> Vec<&Element> {
        let below = self.children.iter().flat_map(Self::all);
        [self].into_iter().chain(below).collect()
    }

    /// All elements of a name.
    pub fn named(&self, name: &str) -> Vec<&Element> {
        let mut all = self.all();
        all.retain(|element| element.name == name);
        all
    }

    /// The element with an `id`.
    pub fn id(&self, id: &str) -> Option<&Element> {
        self.all().into_iter().find(|of| of.get("id") == Some(id))
    }

    /// The section below the heading with this `id`.
    pub fn section(&self, id: &str) -> Option<&Element> {
        let sections = self.named("section");
        (sections.into_iter()).find(|section| section.get("aria-labelledby") == Some(id))
    }

    pub fn get(&self, attribute: &str) -> Option<&str> {
        self.attributes.get(attribute).map(String::as_str)
    }

    pub fn has_class(&self, class: &str) -> bool {
        let classes = self.get("class").unwrap_or_default();
        classes.split(' ').any(|of| of == class)
    }

    /// The tree without its text: names of elements, and of their attributes.
    pub fn shape(&self) -> String {
        let attributes: Vec<_> = self.attributes.keys().map(String::as_str).collect();
        let children: Vec<_> = self.children.iter().map(Self::shape).collect();
        let (attributes, children) = (attributes.join(" "), children.join(" "));
        format!("{}[{attributes}]({children})", self.name)
    }
}

fn close(open: &mut Vec<Element>) {
    let done = open.pop().unwrap();
    let parent = open.last_mut().unwrap();
    parent.text += &done.text;
    parent.children.push(done);
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}
