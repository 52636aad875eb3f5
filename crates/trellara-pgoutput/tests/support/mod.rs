//! The captured messages as bytes, and short ways to look at decoded ones.

#![allow(dead_code, reason = "each test binary uses a part")]

pub(crate) mod encode;

use std::path::PathBuf;

use trellara_pgoutput::{Kind, Message, TupleRef, Value, decode};

/// The versions of PostgreSQL that were captured.
pub(crate) const VERSIONS: [u32; 4] = [15, 16, 17, 18];

fn folder(version: u32) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/vectors/{version}"))
}

/// The scenarios captured of a version, sorted.
pub(crate) fn scenario_names(version: u32) -> Vec<String> {
    let entries = std::fs::read_dir(folder(version)).expect("the folder of the vectors");
    let mut names: Vec<_> = entries
        .map(|entry| {
            let name = entry.expect("an entry").file_name();
            let name = name.to_str().expect("a plain name");
            name.strip_suffix(".hex")
                .expect("only .hex files")
                .to_owned()
        })
        .collect();
    names.sort();
    names
}

/// The messages of one scenario, in order.
pub(crate) fn scenario(version: u32, name: &str) -> Vec<Vec<u8>> {
    let path = folder(version).join(format!("{name}.hex"));
    let text = std::fs::read_to_string(&path).expect("a captured scenario");
    let messages: Vec<_> = text.lines().map(unhex).collect();
    assert!(!messages.is_empty(), "{} is empty", path.display());
    messages
}

fn unhex(line: &str) -> Vec<u8> {
    let digit = |byte: u8| (byte as char).to_digit(16).expect("a hexadecimal digit") as u8;
    line.as_bytes()
        .chunks(2)
        .map(|pair| (digit(pair[0]) << 4) | digit(pair[1]))
        .collect()
}

/// For each message, whether it stands inside a stream block.
pub(crate) fn in_stream_flags(messages: &[Vec<u8>]) -> Vec<bool> {
    let mut inside = false;
    messages
        .iter()
        .map(|message| {
            let kind = Kind::of(message[0]).expect("a known kind");
            inside = (inside || kind == Kind::StreamStart) && kind != Kind::StreamStop;
            inside && kind != Kind::StreamStart
        })
        .collect()
}

/// All messages decoded.
pub(crate) fn decode_all(messages: &[Vec<u8>]) -> Vec<Message<'_>> {
    messages
        .iter()
        .zip(in_stream_flags(messages))
        .map(|(message, in_stream)| decode(message, in_stream).expect("a real message"))
        .collect()
}

/// The kinds in order, with a space behind everything that ends a transaction.
pub(crate) fn outline(messages: &[Message<'_>]) -> String {
    let mut out = String::new();
    let mut open = false;
    for message in messages {
        let kind = message.kind();
        out.push(kind as u8 as char);
        open = (open || kind == Kind::Begin) && kind != Kind::Commit;
        if !open {
            out.push(' ');
        }
    }
    out.trim_end().to_owned()
}

/// A tuple as text: NULL and UNCHANGED for columns without a value.
pub(crate) fn text(tuple: TupleRef<'_>) -> Vec<String> {
    tuple
        .iter()
        .map(|value| match value {
            Value::Null => "NULL".to_owned(),
            Value::Unchanged => "UNCHANGED".to_owned(),
            Value::Text(text) => String::from_utf8(text.to_vec()).expect("UTF-8"),
            Value::Binary(_) => panic!("binary was not asked for"),
        })
        .collect()
}
