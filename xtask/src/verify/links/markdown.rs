//! Reads from a Markdown page what links need: destinations, labels and anchors.
//!
//! Fenced code, code spans and HTML comments are blanked first (keeping line breaks, so that line numbers
//! hold); what is left is searched for the few shapes a link can have. A shortcut reference (`[label]`
//! alone) needs no look-up: with a definition it is that definition's link, without one it is plain text.

use std::collections::{BTreeMap, BTreeSet};

/// What one page links to and can be linked at.
#[derive(Debug, Default)]
pub struct Page {
    /// Destinations: of inline links and images, of definitions, of `href` and `src` attributes.
    pub links: Vec<Located>,
    /// Labels of references that no definition gives.
    pub undefined_labels: Vec<Located>,
    /// Anchors of headings, by GitHub's rules, and explicit `id` and `name` attributes.
    pub anchors: BTreeSet<String>,
}

/// A piece of text and its line, counted from 1.
#[derive(Debug, PartialEq, Eq)]
pub struct Located {
    /// Line number.
    pub line: usize,
    /// The text.
    pub text: String,
}

impl Page {
    /// Parses a page. Malformed Markdown is plain text, as for every Markdown reader.
    pub fn parse(source: &str) -> Self {
        let unfenced = blank_comments(&blank_fences(source));
        let text = blank_code_spans(&unfenced);
        let mut page = Self::default();
        page.collect_anchors(&unfenced, &text);
        let labels = page.collect_definitions(&text);
        page.collect_links(&text, &labels);
        page.collect_attributes(&text);
        page.links.sort_by_key(|link| link.line);
        page
    }

    fn collect_anchors(&mut self, unfenced: &str, text: &str) {
        let mut used = BTreeMap::new();
        for heading in headings(unfenced) {
            let anchor = unique(slug(&heading), &mut used);
            self.anchors.insert(anchor);
        }
        for attribute in [" id=\"", " name=\""] {
            for (_, value) in attribute_values(text, attribute) {
                self.anchors.insert(value.to_owned());
            }
        }
    }

    /// Records the destination of each `[label]: destination` and returns the labels.
    fn collect_definitions(&mut self, text: &str) -> BTreeSet<String> {
        let mut labels = BTreeSet::new();
        for (index, line) in text.lines().enumerate() {
            let definition = line.trim_start().strip_prefix('[');
            let Some((label, rest)) = definition.and_then(|rest| rest.split_once("]:")) else {
                continue;
            };
            if label.starts_with('^') || label.contains(']') {
                continue;
            }
            labels.insert(normalize(label));
            let rest = rest.trim_start();
            let destination = match rest.strip_prefix('<') {
                Some(rest) => rest.split('>').next(),
                None => rest.split_whitespace().next(),
            };
            self.links.push(Located {
                line: index + 1,
                text: destination.unwrap_or_default().to_owned(),
            });
        }
        labels
    }

    fn collect_links(&mut self, text: &str, labels: &BTreeSet<String>) {
        for (at, _) in text.match_indices("](") {
            if opening_label(&text[..at]).is_none() {
                continue;
            }
            if let Some(destination) = inline_destination(&text[at + 2..]) {
                let line = line_of(text, at);
                self.links.push(Located {
                    line,
                    text: destination.to_owned(),
                });
            }
        }
        for (at, _) in text.match_indices("][") {
            let label = text[at + 2..].split_once(']').map(|(label, _)| label);
            let (Some(own), Some(label)) = (opening_label(&text[..at]), label) else {
                continue;
            };
            let label = if label.is_empty() { own } else { label };
            if !label.starts_with('^') && !labels.contains(&normalize(label)) {
                let line = line_of(text, at);
                self.undefined_labels.push(Located {
                    line,
                    text: label.to_owned(),
                });
            }
        }
    }

    fn collect_attributes(&mut self, text: &str) {
        for attribute in [" href=\"", " src=\""] {
            for (at, value) in attribute_values(text, attribute) {
                let line = line_of(text, at);
                self.links.push(Located {
                    line,
                    text: value.to_owned(),
                });
            }
        }
    }
}

/// The destination at the start of `rest`, which follows `](`; `None` if no `)` closes the link.
fn inline_destination(rest: &str) -> Option<&str> {
    let rest = rest.trim_start();
    if let Some(bracketed) = rest.strip_prefix('<') {
        return bracketed
            .split_once('>')
            .map(|(destination, _)| destination);
    }
    let mut depth = 0;
    for (at, c) in rest.char_indices() {
        match c {
            '(' => depth += 1,
            ')' if depth == 0 => return Some(&rest[..at]),
            ')' => depth -= 1,
            c if c.is_whitespace() => {
                let title = rest[at..].trim_start().starts_with(['"', '\'', '(', ')']);
                return title.then_some(&rest[..at]);
            }
            _ => {}
        }
    }
    None
}

/// What stands between the `]` that follows `before` and its `[`; `None` if no `[` of the paragraph opens it.
fn opening_label(before: &str) -> Option<&str> {
    let paragraph = before.rsplit("\n\n").next()?;
    let mut depth = 0;
    for (at, c) in paragraph.char_indices().rev() {
        match c {
            ']' => depth += 1,
            '[' if depth == 0 => return Some(&paragraph[at + 1..]),
            '[' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// Labels match without regard to case and to the amount of white space.
fn normalize(label: &str) -> String {
    let words: Vec<String> = label.split_whitespace().map(str::to_lowercase).collect();
    words.join(" ")
}

fn attribute_values<'a>(
    text: &'a str,
    attribute: &'a str,
) -> impl Iterator<Item = (usize, &'a str)> {
    text.match_indices(attribute).filter_map(move |(at, _)| {
        let (value, _) = text[at + attribute.len()..].split_once('"')?;
        Some((at, value))
    })
}

fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// Headings with their marks removed: `# ATX` and underlined ones.
fn headings(text: &str) -> Vec<String> {
    let mut headings = Vec::new();
    let mut previous = "";
    for line in text.lines() {
        let content = line.trim();
        let level = content.chars().take_while(|&c| c == '#').count();
        let after = &content[level..];
        let atx = (1..=6).contains(&level) && (after.is_empty() || after.starts_with([' ', '\t']));
        let underline = !content.is_empty()
            && (content.chars().all(|c| c == '=') || content.chars().all(|c| c == '-'));
        if atx {
            headings.push(without_closing_marks(after.trim()).to_owned());
        } else if underline && is_paragraph(previous) {
            headings.push(previous.trim().to_owned());
        }
        previous = if atx || underline { "" } else { line };
    }
    headings
}

/// Removes the optional closing `##` of an ATX heading.
fn without_closing_marks(heading: &str) -> &str {
    let body = heading.trim_end_matches('#');
    if body.is_empty() || body.ends_with(' ') {
        body.trim_end()
    } else {
        heading
    }
}

/// Whether a line can be the text of an underlined heading, not a list, quote or table row.
fn is_paragraph(line: &str) -> bool {
    let line = line.trim();
    !line.is_empty() && !line.starts_with(['-', '*', '+', '>', '|', '#'])
}

/// GitHub's anchor of a heading, before numbering.
fn slug(heading: &str) -> String {
    let mut anchor = String::new();
    for c in visible_text(heading).chars() {
        if c.is_alphanumeric() || c == '_' || c == '-' {
            anchor.extend(c.to_lowercase());
        } else if c == ' ' {
            anchor.push('-');
        }
    }
    anchor
}

/// The heading as it is read: link texts without destinations, no images, no tags.
fn visible_text(heading: &str) -> String {
    let mut visible = String::new();
    let mut rest = heading;
    while let Some(c) = rest.chars().next() {
        if let Some(image) = rest.strip_prefix("![")
            && let Some((_, tail)) = image
                .split_once("](")
                .and_then(|(_, tail)| tail.split_once(')'))
        {
            rest = tail;
        } else if let Some(link) = rest.strip_prefix("](")
            && let Some((_, tail)) = link.split_once(')')
        {
            rest = tail;
        } else if rest.starts_with('<')
            && let Some((_, tail)) = rest.split_once('>')
        {
            rest = tail;
        } else {
            visible.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    visible
}

/// Numbers an anchor that is taken: `-1`, `-2` and so on.
fn unique(anchor: String, used: &mut BTreeMap<String, usize>) -> String {
    let mut result = anchor.clone();
    while used.contains_key(&result) {
        let count = used.entry(anchor.clone()).or_insert(0);
        *count += 1;
        result = format!("{anchor}-{count}");
    }
    used.insert(result.clone(), 0);
    result
}

fn blank(text: &str) -> String {
    text.chars()
        .map(|c| if c == '\n' { '\n' } else { ' ' })
        .collect()
}

fn blank_fences(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    // The mark and length of the fence that is open.
    let mut open: Option<(char, usize)> = None;
    for line in source.lines() {
        let content = line.trim_start().trim_start_matches("> ");
        let mark = content.chars().next().filter(|c| matches!(c, '`' | '~'));
        let length = mark.map_or(0, |mark| content.chars().take_while(|&c| c == mark).count());
        let inside = open.is_some();
        match (open, mark) {
            (None, Some(mark)) if length >= 3 && !content[length..].contains('`') => {
                open = Some((mark, length));
            }
            (Some((fence, least)), Some(mark))
                if mark == fence && length >= least && content[length..].trim().is_empty() =>
            {
                open = None;
            }
            _ => {}
        }
        if !inside && open.is_none() {
            text.push_str(line);
        }
        text.push('\n');
    }
    text
}

fn blank_comments(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("<!--") {
        let end = rest[start..]
            .find("-->")
            .map_or(rest.len(), |end| start + end + 3);
        result.push_str(&rest[..start]);
        result.push_str(&blank(&rest[start..end]));
        rest = &rest[end..];
    }
    result + rest
}

/// Blanks `` `code` `` and escaped characters. A span ends with a run of as many backticks as began it,
/// in the same paragraph; a run that nothing closes is text.
fn blank_code_spans(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['`', '\\']) {
        result.push_str(&rest[..at]);
        rest = &rest[at..];
        let length = match rest.strip_prefix('\\') {
            Some(escaped) => 1 + escaped.chars().next().map_or(0, char::len_utf8),
            None => code_span_length(rest),
        };
        result.push_str(&blank(&rest[..length]));
        rest = &rest[length..];
    }
    result + rest
}

fn code_span_length(rest: &str) -> usize {
    let ticks = rest.len() - rest.trim_start_matches('`').len();
    let paragraph = rest.split("\n\n").next().unwrap_or(rest);
    let mut at = ticks;
    while let Some(found) = paragraph[at..].find('`') {
        let tail = &paragraph[at + found..];
        let run = tail.len() - tail.trim_start_matches('`').len();
        at += found + run;
        if run == ticks {
            return at;
        }
    }
    ticks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn destinations(source: &str) -> Vec<(usize, String)> {
        Page::parse(source)
            .links
            .into_iter()
            .map(|link| (link.line, link.text))
            .collect()
    }

    fn texts(source: &str) -> Vec<String> {
        destinations(source)
            .into_iter()
            .map(|(_, text)| text)
            .collect()
    }

    #[test]
    fn every_shape_of_link_is_seen() {
        let source = "[a](one.md) ![b](two.png \"title\")\n[![c](three.svg)](four)\n\
                      [d]( <five six.md> )\n[e][Ref One] [ref  one][]\n[f](wiki_(x).md)\n\n\
                      [ref one]: seven.md \"t\"\n<img src=\"eight.png\"> <a class=\"x\" href=\"nine\">\n";
        assert_eq!(
            texts(source),
            [
                "one.md",
                "two.png",
                "three.svg",
                "four",
                "five six.md",
                "wiki_(x).md",
                "seven.md",
                "nine",
                "eight.png"
            ]
        );
        assert!(Page::parse(source).undefined_labels.is_empty());
    }

    #[test]
    fn code_and_comments_hold_no_links() {
        let source = "```\n[a](x)\n```\n~~~~ md\n[a](x)\n~~~\n[a](x)\n~~~~\n`[a](x)` ``b ` [a](x)``\n\
                      <!-- [a](x)\n[b][c] --> \\[a](x) \n- item\n\n  ```sh\n  [a](x)\n  ```\n[z](y)\n";
        assert_eq!(destinations(source), [(17, "y".to_owned())]);
        assert!(Page::parse(source).undefined_labels.is_empty());
    }

    #[test]
    fn unclosed_backtick_is_text() {
        assert_eq!(texts("a ` b [c](d)\n\nnext ` [e](f)\n"), ["d", "f"]);
    }

    #[test]
    fn undefined_labels_are_seen() {
        let page = Page::parse("[a][b]\n[c][]\n[d][^1]\n[plain] [x]\n");
        let labels: Vec<&str> = page
            .undefined_labels
            .iter()
            .map(|one| one.text.as_str())
            .collect();
        assert_eq!(labels, ["b", "c"]);
    }

    #[test]
    fn anchors_follow_github() {
        let source = "# What is it?\n## `run` & [restore](x.md)\n## Same\n### Same ##\n## Same-1\n\
                      Under line\n===\n- no\n---\n#no\n```\n# code\n```\n## 1. C# _x_y\n\
                      <a id=\"own\"></a>\n## \u{dc}ber\n";
        let page = Page::parse(source);
        let anchors: Vec<&str> = page.anchors.iter().map(String::as_str).collect();
        assert_eq!(
            anchors,
            [
                "1-c-_x_y",
                "own",
                "run--restore",
                "same",
                "same-1",
                "same-1-1",
                "under-line",
                "what-is-it",
                "\u{fc}ber"
            ]
        );
    }

    #[test]
    fn odd_input_never_panics() {
        for source in [
            "[",
            "](",
            "][",
            "]((",
            "`",
            "```",
            "\\",
            "<!--",
            "#",
            "[a]:",
            "](<",
            "\u{e9}`\\\u{e9}",
        ] {
            Page::parse(source);
        }
    }
}
