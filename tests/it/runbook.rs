//! `docs/operating` has a page for each halt code and none for another, its links lead somewhere, and
//! the commands that it names are there.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use trellara_envelope::HaltCode;
use trellara_testkit::daemon::trellara;

/// What an operator looks for on each of them, in this order.
const PARTS: [&str; 5] = [
    "## What it means",
    "## How it looks",
    "## What to check",
    "## How to end it",
    "## What never to do",
];

fn root() -> Result<PathBuf> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    Ok(tests.parent().context("the root")?.to_owned())
}

/// Every page below `docs/operating` with its text.
fn pages() -> Result<Vec<(PathBuf, String)>> {
    let mut pages = Vec::new();
    for folder in ["docs/operating", "docs/operating/halts"] {
        for entry in std::fs::read_dir(root()?.join(folder))? {
            let path = entry?.path();
            if path.is_file() {
                let text = std::fs::read_to_string(&path)?;
                pages.push((path, text));
            }
        }
    }
    Ok(pages)
}

#[test]
fn runbook_has_a_page_for_each_halt_code_and_no_other() -> Result<()> {
    let folder = root()?.join("docs/operating/halts");
    let index = std::fs::read_to_string(root()?.join("docs/operating/README.md"))?;
    let mut expected = BTreeSet::new();
    for code in HaltCode::ALL {
        let name = format!("{code}.md");
        let page = std::fs::read_to_string(folder.join(&name)).context(name.clone())?;
        ensure!(page.starts_with(&format!("# {code}\n")), "{name}: its head");
        let places: Vec<_> = PARTS.iter().map(|part| page.find(part)).collect();
        ensure!(
            places.iter().all(Option::is_some),
            "{name}: {places:?} of {PARTS:?}"
        );
        ensure!(places.is_sorted(), "{name}: {places:?} of {PARTS:?}");
        let exit = code.exit_code();
        ensure!(
            page.contains(&format!("| {exit} |")),
            "{name}: its exit code is {exit}"
        );
        ensure!(page.contains("```"), "{name}: how it looks");
        ensure!(
            page.contains(&format!("{code}: ")),
            "{name} does not show it"
        );
        let row = format!("| [{code}](halts/{name}) | {exit} |");
        ensure!(index.contains(&row), "README.md lacks {row}");
        expected.insert(name);
    }
    let found = std::fs::read_dir(&folder)?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<BTreeSet<String>>>()?;
    ensure!(found == expected, "{found:?}");
    Ok(())
}

/// What the program says in code quotes anywhere: nobody is sent to a command that does not exist.
#[tokio::test]
async fn runbook_hints_name_commands_that_are_there() -> Result<()> {
    let mut sources = Vec::new();
    let mut folders = vec![root()?.join("crates")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            match path.extension() {
                None if path.is_dir() => folders.push(path),
                Some(extension) if extension == "rs" => sources.push(path),
                _ => {}
            }
        }
    }
    let mut named = BTreeSet::new();
    for path in sources
        .iter()
        .filter(|path| path.components().any(|c| c.as_os_str() == "src"))
    {
        let text = std::fs::read_to_string(path)?;
        for rest in text.split("`trellara ").skip(1) {
            let word = rest.split(|c: char| !c.is_ascii_lowercase()).next();
            named.extend(word.filter(|word| !word.is_empty()).map(str::to_owned));
        }
    }
    ensure!(named.len() > 10, "{named:?}");
    let config = root()?.join("trellara.yml.example");
    for verb in named {
        let done = trellara(&config, &[&verb, "--help"]).await?;
        ensure!(done.code == 0, "there is no trellara {verb}");
    }
    Ok(())
}

/// A heading as GitHub names it.
fn anchor(heading: &str) -> String {
    let kept = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = kept.replace(' ', "-");
    kept.chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_'))
        .collect()
}

#[test]
fn runbook_links_lead_somewhere() -> Result<()> {
    for (page, text) in pages()? {
        let folder = page.parent().context("a folder")?;
        let links = text.split("](").skip(1);
        for link in links.filter_map(|rest| rest.split(')').next()) {
            ensure!(!link.contains("://"), "{}: {link}", page.display());
            let (file, part) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => page.clone(),
                file => folder.join(file),
            };
            let there = std::fs::read_to_string(&target);
            let there = there.with_context(|| format!("{}: {link}", page.display()))?;
            let headings = there.lines().filter(|line| line.starts_with('#'));
            let found = part.is_empty() || headings.map(anchor).any(|anchor| anchor == part);
            ensure!(found, "{}: no heading {part} in {file}", page.display());
        }
    }
    Ok(())
}

#[tokio::test]
async fn runbook_names_commands_that_are_there() -> Result<()> {
    let mut named = BTreeSet::new();
    for (_, text) in pages()? {
        for rest in text.split("trellara ").skip(1) {
            let words: Vec<&str> = rest
                .split(|c: char| !c.is_ascii_lowercase() && c != '-' && c != ' ')
                .next()
                .unwrap_or_default()
                .split(' ')
                .take(2)
                .collect();
            named.insert(words.join(" "));
        }
    }
    let config = root()?.join("trellara.yml.example");
    let mut commands = BTreeSet::new();
    for words in named {
        let mut parts = words.split(' ');
        let verb = parts.next().unwrap_or_default();
        let known = trellara(&config, &[verb, "--help"]).await?.code == 0;
        if !known {
            // "the schema trellara and …" is no command.
            continue;
        }
        commands.insert(verb.to_owned());
        if verb == "quarantine" {
            let below = parts.next().unwrap_or_default();
            let done = trellara(&config, &[verb, below, "--help"]).await?;
            ensure!(done.code == 0, "trellara {verb} {below}: {done:?}");
        }
    }
    for wanted in [
        "check",
        "setup",
        "status",
        "wait",
        "verify",
        "inspect",
        "pause",
        "resume",
        "remove",
        "quarantine",
        "rewind",
    ] {
        ensure!(
            commands.contains(wanted),
            "{wanted} is named nowhere: {commands:?}"
        );
    }
    // In code quotes it is always one.
    for (page, text) in pages()? {
        let quoted = text.split('`').skip(1).step_by(2);
        for quote in quoted.filter_map(|quote| quote.strip_prefix("trellara ")) {
            let verb = quote.split(' ').next().unwrap_or_default();
            ensure!(
                commands.contains(verb) || verb == "run",
                "{}: {quote}",
                page.display()
            );
        }
    }
    Ok(())
}
