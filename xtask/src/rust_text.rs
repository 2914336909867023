//! Splits Rust source into code and comments, line by line, so that checks can look for words without
//! being fooled by strings and comments.
//!
//! It is a lexer for just what can hide a word: comments (nested), string literals of every kind and
//! character literals. The *content* of a literal becomes underscores, so its quotes and its being empty
//! or not stay visible; everything else is left as it is.

/// One source line, taken apart.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// The code of the line, literals masked.
    pub code: String,
    /// The text of all comments on the line, without their marks.
    pub comment: String,
}

/// Takes `source` apart. Never fails: an unterminated literal or comment runs to the end.
pub fn split(source: &str) -> Vec<Line> {
    let mut lexer = Lexer {
        chars: source.chars().collect(),
        at: 0,
        lines: vec![Line::default()],
    };
    while lexer.at < lexer.chars.len() {
        lexer.step();
    }
    lexer.lines
}

/// Offsets of `word` in `code` where it stands alone, not as a part of a longer identifier.
pub fn find_word(code: &str, word: &str) -> Vec<usize> {
    code.match_indices(word)
        .map(|(at, _)| at)
        .filter(|&at| {
            let before = code[..at].chars().next_back();
            let after = code[at + word.len()..].chars().next();
            !before.is_some_and(is_identifier) && !after.is_some_and(is_identifier)
        })
        .collect()
}

fn is_identifier(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

struct Lexer {
    chars: Vec<char>,
    at: usize,
    lines: Vec<Line>,
}

impl Lexer {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    fn line(&mut self) -> &mut Line {
        if self.lines.is_empty() {
            self.lines.push(Line::default());
        }
        let last = self.lines.len() - 1;
        &mut self.lines[last]
    }

    fn push_code(&mut self, c: char) {
        if c == '\n' {
            self.lines.push(Line::default());
        } else {
            self.line().code.push(c);
        }
    }

    fn push_masked(&mut self, c: char) {
        self.push_code(if c == '\n' { c } else { '_' });
    }

    fn push_comment(&mut self, c: char) {
        if c == '\n' {
            self.lines.push(Line::default());
        } else {
            self.line().comment.push(c);
        }
    }

    fn step(&mut self) {
        let Some(c) = self.peek(0) else { return };
        match (c, self.peek(1)) {
            ('/', Some('/')) => self.line_comment(),
            ('/', Some('*')) => self.block_comment(),
            ('"', _) => self.string(),
            ('\'', _) => self.quote(),
            ('r', _) if !self.inside_identifier() => match self.raw_hashes() {
                Some(hashes) => self.raw_string(hashes),
                None => self.plain(c),
            },
            _ => self.plain(c),
        }
    }

    fn plain(&mut self, c: char) {
        self.push_code(c);
        self.at += 1;
    }

    /// True if the character here continues an identifier; the prefixes `b` and `c` of literals do not count.
    fn inside_identifier(&self) -> bool {
        let back = |n: usize| self.at.checked_sub(n).map(|at| self.chars[at]);
        match back(1) {
            Some('b' | 'c') => back(2).is_some_and(is_identifier),
            Some(c) => is_identifier(c),
            None => false,
        }
    }

    /// For `r"` or `r#"` and so on: the number of hashes.
    fn raw_hashes(&self) -> Option<usize> {
        let mut hashes = 0;
        while self.peek(1 + hashes) == Some('#') {
            hashes += 1;
        }
        (self.peek(1 + hashes) == Some('"')).then_some(hashes)
    }

    fn line_comment(&mut self) {
        self.at += 2;
        while let Some(c) = self.peek(0).filter(|&c| c != '\n') {
            self.push_comment(c);
            self.at += 1;
        }
    }

    fn block_comment(&mut self) {
        let mut depth = 0;
        while let Some(c) = self.peek(0) {
            match (c, self.peek(1)) {
                ('/', Some('*')) => {
                    depth += 1;
                    self.at += 2;
                }
                ('*', Some('/')) => {
                    depth -= 1;
                    self.at += 2;
                    if depth == 0 {
                        return;
                    }
                }
                _ => {
                    self.push_comment(c);
                    self.at += 1;
                }
            }
        }
    }

    fn string(&mut self) {
        self.plain('"');
        while let Some(c) = self.peek(0) {
            match c {
                '"' => return self.plain(c),
                '\\' => {
                    self.push_masked(c);
                    self.at += 1;
                    if let Some(escaped) = self.peek(0) {
                        self.push_masked(escaped);
                        self.at += 1;
                    }
                }
                _ => {
                    self.push_masked(c);
                    self.at += 1;
                }
            }
        }
    }

    fn raw_string(&mut self, hashes: usize) {
        for _ in 0..hashes + 2 {
            if let Some(c) = self.peek(0) {
                self.plain(c);
            }
        }
        while let Some(c) = self.peek(0) {
            if c == '"' && (1..=hashes).all(|n| self.peek(n) == Some('#')) {
                for _ in 0..=hashes {
                    if let Some(c) = self.peek(0) {
                        self.plain(c);
                    }
                }
                return;
            }
            self.push_masked(c);
            self.at += 1;
        }
    }

    /// A character literal, or else a lifetime or label.
    fn quote(&mut self) {
        let escaped = self.peek(1) == Some('\\');
        if !escaped && self.peek(2) != Some('\'') {
            return self.plain('\'');
        }
        self.plain('\'');
        // The first character is content even if it is a quote or starts an escape.
        for _ in 0..if escaped { 2 } else { 1 } {
            if let Some(c) = self.peek(0) {
                self.push_masked(c);
                self.at += 1;
            }
        }
        while let Some(c) = self.peek(0).filter(|&c| c != '\n') {
            if c == '\'' {
                return self.plain(c);
            }
            self.push_masked(c);
            self.at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(source: &str) -> Vec<String> {
        split(source).into_iter().map(|line| line.code).collect()
    }

    #[test]
    fn comments_leave_the_code() {
        let lines = split("a; // one\n/* two /* three */ four */ b;");
        assert_eq!(lines[0].code, "a; ");
        assert_eq!(lines[0].comment, " one");
        assert_eq!(lines[1].code, " b;");
        assert_eq!(lines[1].comment, " two  three  four ");
    }

    #[test]
    fn literals_are_masked_and_keep_their_shape() {
        assert_eq!(code(r#"f("a // \" b", "")"#), [r#"f("_________", "")"#]);
        assert_eq!(code("r#\"unsafe \"x\" \"# + r"), ["r#\"___________\"# + r"]);
        assert_eq!(code("br\"//\" b\"ab\""), ["br\"__\" b\"__\""]);
        assert_eq!(code("\"a\nb\""), ["\"_", "_\""]);
    }

    #[test]
    fn characters_differ_from_lifetimes() {
        assert_eq!(
            code(r#"('"', '\'', '\u{1f}', 'a')"#),
            ["('_', '__', '______', '_')"]
        );
        assert_eq!(
            code("fn f<'a>(x: &'a str) {} // \""),
            ["fn f<'a>(x: &'a str) {} "]
        );
        assert_eq!(code("'outer: loop {}"), ["'outer: loop {}"]);
    }

    #[test]
    fn raw_identifiers_are_code() {
        assert_eq!(code("r#type(\"x\")"), ["r#type(\"_\")"]);
        assert_eq!(code("for\"x\""), ["for\"_\""]);
    }

    #[test]
    fn unterminated_input_ends() {
        for source in ["\"abc", "/* abc", "r#\"abc\"", "'\\", "'", "r"] {
            assert!(!split(source).is_empty());
        }
    }

    #[test]
    fn words_stand_alone() {
        assert_eq!(
            find_word("unsafe_code unsafe {} _unsafe unsafe", "unsafe"),
            [12, 30]
        );
    }
}
