//! Text from elsewhere, shown so that nothing in it acts and nothing in it is mistaken.
//!
//! Names, keys and values are whatever somebody wrote into a database. Printed as they are, a line
//! break in one forges a line of ours, and an escape sequence or a change of direction acts on the
//! terminal. What is shown plainly is always literal; what is not is between quotes, escaped.

use std::borrow::Cow;
use std::fmt::Write;

/// Acts on a terminal, or cannot be seen: controls, changes of direction, fillers, selectors, tags.
fn invisible(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}'
                | '\u{34f}'
                | '\u{61c}'
                | '\u{115f}'..='\u{1160}'
                | '\u{17b4}'..='\u{17b5}'
                | '\u{180b}'..='\u{180f}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{3164}'
                | '\u{fe00}'..='\u{fe0f}'
                | '\u{feff}'
                | '\u{ffa0}'
                | '\u{fff0}'..='\u{fffb}'
                | '\u{1bca0}'..='\u{1bca3}'
                | '\u{1d173}'..='\u{1d17a}'
                | '\u{e0000}'..='\u{e0fff}'
        )
}

fn escape(text: &str, keep: &[char]) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if keep.contains(&c) || !invisible(c) {
            out.push(c);
            continue;
        }
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ => {
                let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
            }
        }
    }
    out
}

/// Words that stay on their line, such as a reason in which a server's own words stand.
pub(crate) fn inline(text: &str) -> Cow<'_, str> {
    match text.contains(invisible) {
        true => Cow::Owned(escape(text, &[])),
        false => Cow::Borrowed(text),
    }
}

/// Lines that we laid out ourselves: the last resort for whatever was not shown by another
/// function here. A line break is taken for ours.
pub(crate) fn lines(text: &str) -> Cow<'_, str> {
    const OURS: [char; 2] = ['\n', '\t'];
    match text.contains(|c| invisible(c) && !OURS.contains(&c)) {
        true => Cow::Owned(escape(text, &OURS)),
        false => Cow::Borrowed(text),
    }
}

/// JSON that says the same; between the quotes of JSON alone can such a character stand.
pub(crate) fn json(text: &str) -> Cow<'_, str> {
    let acts = |c: char| invisible(c) && c != '\n';
    if !text.contains(acts) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if !acts(c) {
            out.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            let _ = write!(out, "\\u{unit:04x}");
        }
    }
    Cow::Owned(out)
}

/// A name or value: as it is where that cannot be misread, else between quotes.
pub(crate) fn quoted(text: &str) -> Cow<'_, str> {
    let misread = |c: char| {
        invisible(c) || c.is_whitespace() || matches!(c, '"' | '\'' | '=' | ',' | '(' | ')' | ';')
    };
    if !text.is_empty() && !text.contains(misread) && !text.ends_with(':') {
        return Cow::Borrowed(text);
    }
    Cow::Owned(between_quotes(text))
}

fn between_quotes(text: &str) -> String {
    let text = text.replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{}\"", escape(&text, &[]))
}

/// A table's name: a dot that is part of a name is between quotes.
pub(crate) fn table(schema: &str, name: &str) -> String {
    let part = |text: &str| match text.contains('.') {
        true => between_quotes(text),
        false => quoted(text).into_owned(),
    };
    format!("{}.{}", part(schema), part(name))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_cannot_be_misread_stays_as_it_is() {
        for plain in [
            "17", "orders", "-1.50", "a-b_c", "Zürich", "\\xff00", "日本",
        ] {
            assert_eq!(quoted(plain), plain);
        }
        assert_eq!(table("public", "orders"), "public.orders");
    }

    #[test]
    fn what_can_is_quoted_and_escaped() {
        for (text, shown) in [
            ("", r#""""#),
            ("a b", r#""a b""#),
            ("x\nverdict: EQUAL", r#""x\nverdict: EQUAL""#),
            ("\u{1b}[2J", r#""\u{1b}[2J""#),
            ("\u{9b}2J", r#""\u{9b}2J""#),
            ("a\u{202e}b", r#""a\u{202e}b""#),
            ("say \"no\"", r#""say \"no\"""#),
            ("1: missing", r#""1: missing""#),
            ("\\n\n", r#""\\n\n""#),
        ] {
            assert_eq!(quoted(text), shown);
        }
        assert_eq!(table("a.b", "c"), "\"a.b\".c");
        assert_ne!(table("a.b", "c"), table("a", "b.c"));
    }

    proptest! {
        #[test]
        fn nothing_shown_acts(text in any::<String>()) {
            for shown in [inline(&text), quoted(&text)] {
                prop_assert!(!shown.contains(invisible));
            }
            prop_assert!(!lines(&text).contains(|c| invisible(c) && c != '\n' && c != '\t'));
        }

        #[test]
        fn different_texts_are_shown_differently(a in any::<String>(), b in any::<String>()) {
            prop_assert_eq!(a == b, quoted(&a) == quoted(&b));
        }

        #[test]
        fn json_keeps_its_meaning(text in any::<String>()) {
            let made = serde_json::to_string(&text).unwrap();
            let shown = json(&made);
            prop_assert!(!shown.contains(invisible));
            prop_assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), text);
        }
    }
}
