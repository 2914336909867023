//! The page of `nvx perf report --html` in a real browser: every series is drawn, nothing overflows on
//! a phone or a desk, light and dark can be read, and the filter filters. Screenshots stay in
//! `target/tmp/artifacts/report-*.png`.
//!
//! The browser is a headless Chromium that is spoken to by its DevTools protocol over a pipe. It is
//! given no network: nothing but the file is ever asked for. Without Chromium the tests are skipped.

#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking"
)]

mod browser_support;
mod perf_support;

use std::fs;
use std::path::{Path, PathBuf};

use browser_support::{Browser, Screen};
use perf_support::{GOOD, HISTORY, METRICS, PLATFORM, perf, rows, skip, step, text, write};
use serde_json::{Value, json};

/// What the page says of itself. Each fault is a text; there must be none.
const MEASURE: &str = r#"(() => {
  const faults = [];
  const say = (what, element) => faults.push(
    what + ": " + element.tagName + "." + (element.getAttribute("class") || "") + " " + (element.id || element.textContent.trim().slice(0, 60)));
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > width) faults.push("the page is wider than its window: " + document.documentElement.scrollWidth);
  const shown = (element) => element.getClientRects().length > 0;
  for (const element of document.body.querySelectorAll("*")) {
    if (!shown(element)) continue;
    const box = element.getBoundingClientRect();
    if (box.left < -0.5 || box.right > width + 0.5) say("beyond the window", element);
    const parent = element.parentElement.closest("figure, fieldset, section, details");
    if (parent && shown(parent)) {
      const outer = parent.getBoundingClientRect();
      if (box.left < outer.left - 0.5 || box.right > outer.right + 0.5) say("beyond its frame", element);
    }
  }
  let drawn = 0;
  for (const figure of document.querySelectorAll("figure")) {
    if (!shown(figure)) continue;
    const svg = figure.querySelector("svg"), view = svg.viewBox.baseVal;
    const line = svg.querySelector("polyline.line"), band = svg.querySelector("polygon.band");
    if (!line || line.getTotalLength() < view.width / 2) say("no line", figure); else drawn += 1;
    if (line && (getComputedStyle(line).stroke === "none" || getComputedStyle(line).fill !== "none")) say("line has no colour", figure);
    if (!band || band.getBBox().height < 1) say("no band", figure);
    if (svg.getBoundingClientRect().height < 60) say("too flat", figure);
    const inside = (element) => {
      const box = element.getBBox();
      return box.x >= -0.5 && box.y >= -0.5 && box.x + box.width <= view.width + 0.5 && box.y + box.height <= view.height + 0.5;
    };
    const labels = [...svg.querySelectorAll("text")];
    for (const element of [...labels, line, band, ...svg.querySelectorAll("circle")])
      if (element && !inside(element)) say("cut off", element);
    for (const one of labels) for (const other of labels) {
      const a = one.getBoundingClientRect(), b = other.getBoundingClientRect();
      if (one !== other && a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom) say("labels overlap", one);
      if (one.getBoundingClientRect().height < 8) say("label too small", one);
    }
    if (!document.getElementById(svg.getAttribute("aria-labelledby").split(" ")[1]).textContent) say("no text alternative", figure);
  }
  const channels = (colour) => colour.match(/[\d.]+/g).map(Number);
  const light = (colour) => {
    const [r, g, b] = channels(colour).map((value) => { value /= 255; return value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (channels(colour)[3] !== 0) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  for (const element of document.querySelectorAll("h1, h2, h3, p, b, small, summary, li, label, a, span, text")) {
    if (!shown(element) || !element.textContent.trim()) continue;
    const style = getComputedStyle(element);
    const [a, b] = [light(element.tagName === "text" ? style.fill : style.color), light(behind(element))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) say("hard to read, contrast " + ((a + 0.05) / (b + 0.05)).toFixed(2), element);
  }
  return {faults, drawn, back: light(getComputedStyle(document.body).backgroundColor),
    sections: [...document.querySelectorAll("section")].filter(shown).length};
})()"#;

/// WCAG's relative luminance that parts light pages from dark ones.
const MIDDLE: f64 = 0.18;

fn screens() -> [(&'static str, Screen); 4] {
    let screen = |width: u32, dark: bool| Screen {
        width,
        height: 900,
        dark,
    };
    [
        ("390-light", screen(390, false)),
        ("390-dark", screen(390, true)),
        ("1280-light", screen(1280, false)),
        ("1280-dark", screen(1280, true)),
    ]
}

/// Three histories: a shift and a newest point that is suspect, two kinds of host, and few commits.
fn page(here: &Path) -> PathBuf {
    let shift = |name: &str, at: usize| {
        step("live_read", 22, 1.25)(name, at) * step("nvx_snapshot_restore", 39, 1.3)(name, at)
    };
    let hosts = |name: &str, at: usize| {
        let slow = matches!(at, 0..12 | 20 | 24 | 30..33);
        if slow && !name.ends_with("rss") {
            1.12
        } else {
            1.0
        }
    };
    let other = "windows-whp-virtual-machine";
    let third = "linux-kvm-emulated";
    let files = [
        write(here, HISTORY, rows(PLATFORM, 0..40, shift)),
        write(
            here,
            &format!("{other}-microvm-v2-1vcpu.csv"),
            rows(other, 0..400, hosts),
        ),
        write(
            here,
            &format!("{third}-microvm-v2-1vcpu.csv"),
            rows(third, 0..14, |_, _| 1.0),
        ),
    ];
    let page = here.join("report.html");
    let mut arguments = vec!["report", "--html", text(&page)];
    arguments.extend(files.iter().map(|file| text(file)));
    perf(arguments).ends_with(GOOD);
    page
}

fn artifact(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("artifacts");
    fs::create_dir_all(&directory).unwrap();
    directory.join(name)
}

fn none_of(measured: &Value) -> bool {
    measured["faults"].as_array().is_some_and(Vec::is_empty)
}

#[test]
fn the_report_is_drawn_whole_on_phone_and_desk_in_light_and_dark() {
    let test = "the_report_is_drawn_whole_on_phone_and_desk_in_light_and_dark";
    let Some(mut browser) = Browser::start() else {
        skip(test, "no Chromium is installed (Debian package: chromium)");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let page = page(directory.path());
    for (name, screen) in screens() {
        browser.show(&page, &screen);
        // What is folded up must fit as well.
        browser.evaluate(
            "document.querySelectorAll('details').forEach((one) => { one.open = true; })",
        );
        let measured = browser.evaluate(MEASURE);
        browser.screenshot(&artifact(&format!("report-{name}.png")));
        assert!(none_of(&measured), "{name}: {measured:#}");
        assert_eq!(measured["drawn"], json!(3 * METRICS.len()), "{name}");
        let back = measured["back"].as_f64().unwrap();
        assert_eq!(back < MIDDLE, screen.dark, "{name}: {back}");
    }
    assert_eq!(browser.requests(), [format!("file://{}", text(&page))]);
}

#[test]
fn a_platform_is_chosen_without_any_script() {
    let test = "a_platform_is_chosen_without_any_script";
    let Some(mut browser) = Browser::start() else {
        skip(test, "no Chromium is installed (Debian package: chromium)");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let page = page(directory.path());
    let (_, phone) = &screens()[0];
    browser.show(&page, phone);
    assert_eq!(browser.evaluate(MEASURE)["sections"], 3);
    for (choice, sections) in [("only1", 1), ("only2", 1), ("all", 3)] {
        browser.click(&format!("#{choice}"));
        let measured = browser.evaluate(MEASURE);
        assert_eq!(measured["sections"], sections, "{choice}");
        assert!(none_of(&measured), "{choice}: {measured:#}");
    }
    assert_eq!(browser.evaluate("document.scripts.length"), 0);
}

/// A measurement that finds nothing is worth something only if it would find what is wrong.
#[test]
fn what_would_be_wrong_with_a_page_is_found() {
    let test = "what_would_be_wrong_with_a_page_is_found";
    let Some(mut browser) = Browser::start() else {
        skip(test, "no Chromium is installed (Debian package: chromium)");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let page = page(directory.path());
    let (_, phone) = &screens()[0];
    for (damage, fault) in [
        (
            "document.querySelector('figure').style.width = '500px'",
            "beyond the window",
        ),
        (
            "document.querySelector('h3').style.marginLeft = '-99px'",
            "beyond its frame",
        ),
        (
            "document.querySelector('polyline.line').remove()",
            "no line",
        ),
        (
            "document.querySelector('polyline.line').style.stroke = 'none'",
            "line has no colour",
        ),
        ("document.querySelector('polygon.band').remove()", "no band"),
        (
            "document.querySelector('text').setAttribute('x', 390)",
            "cut off",
        ),
        (
            "document.querySelector('h3').style.color = '#999'",
            "hard to read",
        ),
        (
            "document.querySelector('desc').textContent = ''",
            "no text alternative",
        ),
    ] {
        browser.show(&page, phone);
        browser.evaluate(&format!("{damage}, 0"));
        let faults = browser.evaluate(MEASURE)["faults"].to_string();
        assert!(faults.contains(fault), "{damage}: {faults}");
    }
}
