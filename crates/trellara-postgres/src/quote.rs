//! Quoting of identifiers and literals; nothing from data reaches SQL without passing here.

/// An identifier in double quotes, whatever it holds. PostgreSQL names cannot hold a NUL; one is
/// left out rather than cutting the statement short.
pub fn identifier(name: &str) -> String {
    enclosed(name, '"')
}

/// A string literal that means the same whatever `standard_conforming_strings` says: backslashes
/// switch to the `E''` form.
pub fn literal(text: &str) -> String {
    if text.contains('\\') {
        format!(" E{}", enclosed(&text.replace('\\', "\\\\"), '\''))
    } else {
        enclosed(text, '\'')
    }
}

/// `"schema"."name"`.
pub fn qualified(schema: &str, name: &str) -> String {
    format!("{}.{}", identifier(schema), identifier(name))
}

/// Quoted identifiers with commas between them, as `publication_names` takes them.
pub fn identifier_list<S: AsRef<str>>(names: &[S]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| identifier(name.as_ref())).collect();
    quoted.join(",")
}

fn enclosed(text: &str, quote: char) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push(quote);
    for c in text.chars().filter(|c| *c != '\0') {
        if c == quote {
            out.push(quote);
        }
        out.push(c);
    }
    out.push(quote);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_are_doubled_and_nothing_escapes() {
        assert_eq!(identifier("My\"Pub"), "\"My\"\"Pub\"");
        assert_eq!(identifier_list(&["a,b", "C"]), "\"a,b\",\"C\"");
        assert_eq!(literal("it's"), "'it''s'");
        assert_eq!(literal("a\\'b"), " E'a\\\\''b'");
        assert_eq!(
            qualified("Weird.Sch\"ema", "t\0x"),
            "\"Weird.Sch\"\"ema\".\"tx\""
        );
    }
}
