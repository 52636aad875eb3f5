//! The page in a browser, with everything hostile in it that a database can hold.

use std::path::{Path, PathBuf};
use std::process::Command;

use trellara_verify::report::Report;

use super::super::document::of;
use super::super::sample::{FORGED, circumstances, report};
use super::*;

/// A browser that needs no screen. There must be one: a page that nobody opened is not tested.
fn browser() -> PathBuf {
    const NAMES: [&str; 4] = [
        "chromium",
        "chromium-browser",
        "google-chrome",
        "google-chrome-stable",
    ];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let candidates = NAMES
        .iter()
        .flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    let mut found = candidates.filter(|candidate| candidate.is_file());
    found
        .next()
        .expect("chromium, for the test of the page: apt-get install chromium")
}

fn open(page: &Path, arguments: &[&str]) -> Vec<u8> {
    let profile = tempfile::tempdir().unwrap();
    let output = Command::new(browser())
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
        ])
        .args([
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--virtual-time-budget=2000",
        ])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .args(arguments)
        .arg(format!("file://{}", page.display()))
        .output()
        .expect("a browser that starts");
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

fn written(folder: &Path, html: &str) -> PathBuf {
    let path = folder.join("report.html");
    std::fs::write(&path, html).unwrap();
    path
}

#[test]
fn what_is_hostile_neither_runs_nor_breaks_the_page() {
    let folder = tempfile::tempdir().unwrap();
    let html = page(&of(&report(), &circumstances(true)));
    let path = written(folder.path(), &html);
    let dom = String::from_utf8(open(&path, &["--dump-dom"])).unwrap();
    assert!(
        dom.contains("<title>Different: trellara verify, shop</title>"),
        "{dom}"
    );
    assert_eq!(dom.matches("<script").count(), 0, "{dom}");
    // The parser put everything where the template has it: nothing was closed or opened by data.
    for (what, times) in [
        ("<h1", 1),
        ("<table", 2),
        ("<footer", 1),
        ("</html>", 1),
        ("<tr>", 7),
    ] {
        assert_eq!(dom.matches(what).count(), times, "{what} in {dom}");
    }
    assert!(
        dom.contains("&lt;script&gt;document.title"),
        "the name itself is shown"
    );
    for c in ['\u{1b}', '\u{9b}', '\u{202e}'] {
        assert!(!dom.contains(c));
    }
    assert!(FORGED.contains("<script>"));
}

/// A bar says in lengths what its table says in numbers, and every table has one.
#[test]
fn each_table_has_its_bar() {
    let mut report = report();
    report.tables[1].source_rows = 500;
    report.tables[1].target_rows = 500;
    (report.tables[1].changed, report.tables[1].duplicate) = (250, 0);
    let bars = |report: &Report| {
        let html = page(&of(report, &circumstances(false)));
        let bars = html.split("<svg class=\"bar\"").skip(1);
        let bars = bars.map(|bar| bar.split("</svg>").next().unwrap().to_owned());
        bars.collect::<Vec<_>>()
    };
    let drawn = bars(&report);
    assert_eq!(drawn.len(), 3, "{drawn:?}");
    let has = |bar: &str, what: &[&str]| {
        for what in what {
            assert!(bar.contains(what), "{what} in {bar}");
        }
    };
    // The largest table fills its place, and half as many rows half of it.
    let equal = r#"<rect class="fill-equal" x="0" y="0" width="400.00""#;
    has(&drawn[0], &["1\u{202f}000 rows, 0 of them differ", equal]);
    let different = r#"<rect class="fill-different" x="100.00" y="0" width="100.00""#;
    let equal = r#"<rect class="fill-equal" x="0" y="0" width="100.00""#;
    has(
        &drawn[1],
        &["500 rows, 250 of them differ", equal, different],
    );
    has(&drawn[2], &[r#"aria-label="not compared""#, "url(#hatch)"]);
    assert!(!drawn[2].contains("fill-equal"), "{}", drawn[2]);

    // What differs is seen, however little it is; and of a half that was looked at, a half is shown.
    report.tables[1].changed = 1;
    report.tables[0].coverage.compared = 5;
    let drawn = bars(&report);
    has(
        &drawn[1],
        &[r#"class="fill-different" x="192.00" y="0" width="8.00""#],
    );
    has(
        &drawn[0],
        &[r#"class="fill-equal" x="0" y="0" width="200.00""#],
    );
    // What is explained is neither alarming nor unsure.
    report.tables[1].explained = 1;
    has(&bars(&report)[1], &["fill-explained"]);
    let html = page(&of(&report, &circumstances(false)));
    assert!(html.contains(r#"<span class="explained">"#), "{html}");
}

/// Whatever escaping misses, the policy stops; and it does not stop the style.
#[test]
fn the_policy_lets_nothing_act() {
    let folder = tempfile::tempdir().unwrap();
    let html = page(&of(&report(), &circumstances(false)));
    let script = "<script>document.title='owned'</script>\
                  <img src=x onerror=\"document.title='owned'\"><p id=seen>seen</p></body>";
    let dom = |html: &str| {
        let path = written(folder.path(), html);
        String::from_utf8(open(&path, &["--dump-dom"])).unwrap()
    };
    let dumped = dom(&html.replace("</body>", script));
    assert!(dumped.contains("id=\"seen\""), "{dumped}");
    assert!(!dumped.contains("<title>owned"), "{dumped}");
    // The same page without its policy: the browser would have run it.
    let open_to_all = html.replace("http-equiv=\"Content-Security-Policy\"", "name=\"none\"");
    assert!(dom(&open_to_all.replace("</body>", script)).contains("<title>owned"));
}

#[test]
fn it_is_seen() {
    let folder = tempfile::tempdir().unwrap();
    let html = page(&of(&report(), &circumstances(true)));
    let styled = shot(folder.path(), &html);
    // A blank page of this size is a few thousand bytes of PNG.
    assert!(styled.len() > 20_000, "{} bytes", styled.len());
    // The style is in force: a hash that did not fit would be refused.
    let plain = shot(folder.path(), &html.replace("sha256-", "sha256-x"));
    assert_ne!(styled, plain);
}

fn shot(folder: &Path, html: &str) -> Vec<u8> {
    let (page, picture) = (written(folder, html), folder.join("shot.png"));
    let to = format!("--screenshot={}", picture.display());
    open(&page, &[&to, "--window-size=1280,1600"]);
    std::fs::read(picture).unwrap()
}

#[test]
fn digits_are_grouped() {
    for (number, text) in [
        (7, "7"),
        (999, "999"),
        (1000, "1 000"),
        (1_234_567, "1 234 567"),
    ] {
        assert_eq!(grouped(number).replace('\u{202f}', " "), text);
    }
}
