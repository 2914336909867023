//! From bytes to a [`History`], line by line.

use std::collections::HashMap;
use std::path::Path;

use super::error::{Column, HistoryError, Problem};
use super::number::{NumberFault, parse_p50};
use super::{
    CommitRows, Direction, HEADER, History, LEGACY_HEADER, Layout, MAX_METRICS, Metric, NameRule,
    Row,
};
use crate::identity::{HostKind, Identity, KNOWN_ABIS, plain_number};
use crate::metric_name::Prefix;

const COLUMNS: [&str; 8] = [
    "platform",
    "microvm_abi_version",
    "processors",
    "commit",
    "metric",
    "unit",
    "direction",
    "p50",
];
/// A legacy file's first column is this one of [`COLUMNS`].
const LEGACY_FIRST: usize = 3;
/// Longest metric name and unit, in bytes.
const MAX_NAME_BYTES: usize = 128;
const MAX_UNIT_BYTES: usize = 16;
/// How much of a wrong cell a message repeats, in characters.
const QUOTED_CHARACTERS: usize = 80;

type Fault = (Column, Problem);

pub(super) fn parse(path: &Path, content: &[u8], rule: NameRule) -> Result<History, HistoryError> {
    let at = |line: usize, (column, problem): Fault| HistoryError::Line {
        path: path.to_owned(),
        line,
        column,
        problem: Box::new(problem),
    };
    let text = check_text(content).map_err(|(line, fault)| at(line, fault))?;
    let mut lines = text.split_terminator('\n');
    let layout = header(lines.next().unwrap_or("")).map_err(|fault| at(1, fault))?;
    let named = name_says(path, layout, rule).map_err(|fault| at(1, fault))?;
    let mut reader = Reader::new(layout, named);
    for (index, line) in lines.enumerate() {
        let line_number = index + 2;
        reader
            .line(line_number, line)
            .map_err(|fault| at(line_number, fault))?;
    }
    // A rows file without rows says nothing about itself.
    let identity = reader
        .identity
        .ok_or_else(|| at(1, header_fault(Problem::NoRows)))?;
    Ok(History {
        identity,
        layout,
        metrics: reader.metrics,
        commits: reader.commits,
    })
}

/// Checks of the whole file, before its lines mean anything.
fn check_text(content: &[u8]) -> Result<&str, (usize, Fault)> {
    if content.is_empty() {
        return Err((1, header_fault(Problem::Empty)));
    }
    if content.starts_with(b"\xef\xbb\xbf") {
        return Err((1, header_fault(Problem::ByteOrderMark)));
    }
    let place = |offset: usize| {
        let before = content.get(..offset).unwrap_or(content);
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        let line_start = before
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |at| at + 1);
        let commas = before[line_start..]
            .iter()
            .filter(|byte| **byte == b',')
            .count();
        (line, commas + 1)
    };
    let fault = |offset: usize, problem| {
        let (line, number) = place(offset);
        (line, (Column { number, name: "" }, problem))
    };
    if let Some(offset) = content.iter().position(|byte| *byte == b'\r') {
        return Err(fault(offset, Problem::CarriageReturn));
    }
    let text = std::str::from_utf8(content)
        .map_err(|error| fault(error.valid_up_to(), Problem::NotUtf8))?;
    if !text.ends_with('\n') {
        return Err(fault(content.len(), Problem::CutOff));
    }
    Ok(text)
}

fn header(line: &str) -> Result<Layout, Fault> {
    match line {
        HEADER => Ok(Layout::Current),
        LEGACY_HEADER => Ok(Layout::Legacy),
        other => {
            let wrong = other
                .split(',')
                .zip(COLUMNS)
                .take_while(|(found, wanted)| found == wanted)
                .count();
            let column = Column {
                number: wrong + 1,
                name: "",
            };
            Err((
                column,
                Problem::Header {
                    found: quoted(other),
                },
            ))
        }
    }
}

/// What the file's name says that its rows are about, where it has to.
fn name_says(path: &Path, layout: Layout, rule: NameRule) -> Result<Option<Identity>, Fault> {
    match (layout, rule) {
        (Layout::Current, NameRule::Rows) => Ok(None),
        (Layout::Current, NameRule::History) => match Identity::of_file_name(path) {
            Some(identity) => Ok(Some(identity)),
            None => Err(header_fault(Problem::FileName)),
        },
        (Layout::Legacy, _) => {
            let stem = path
                .file_stem()
                .and_then(|stem| stem.to_str())
                .unwrap_or("");
            if HostKind::of_platform(stem).is_none() {
                return Err(header_fault(Problem::Platform {
                    found: quoted(stem),
                }));
            }
            Ok(Some(Identity {
                platform: stem.to_owned(),
                microvm_abi_version: 1,
                processors: 1,
            }))
        }
    }
}

struct Reader {
    layout: Layout,
    /// What the rows must be about; without a telling file name it is what the first row says.
    identity: Option<Identity>,
    named: bool,
    metrics: Vec<Metric>,
    /// Line of each metric's first row.
    first_lines: Vec<usize>,
    by_name: HashMap<String, usize>,
    commits: Vec<CommitRows>,
    /// Last line of every finished block.
    finished: HashMap<String, usize>,
    /// Per metric: the block and line that it was last seen in.
    seen: Vec<Option<(usize, usize)>>,
    /// Prefix, of which there may be one per ending, by ending.
    endings: HashMap<String, usize>,
}

impl Reader {
    fn new(layout: Layout, named: Option<Identity>) -> Self {
        Self {
            layout,
            named: named.is_some(),
            identity: named,
            metrics: Vec::new(),
            first_lines: Vec::new(),
            by_name: HashMap::new(),
            commits: Vec::new(),
            finished: HashMap::new(),
            seen: Vec::new(),
            endings: HashMap::new(),
        }
    }

    fn line(&mut self, number: usize, line: &str) -> Result<(), Fault> {
        let cells = self.split(line)?;
        if self.layout == Layout::Current {
            self.check_identity(cells[0], cells[1], cells[2])?;
        }
        let [commit, name, unit, direction, p50] =
            [cells[3], cells[4], cells[5], cells[6], cells[7]];
        self.open_block(number, commit)?;
        let metric = self.metric(number, name, unit, direction)?;
        let block = self.commits.len();
        if let Some((seen_block, first_line)) = self.seen[metric]
            && seen_block == block
        {
            let metric = name.to_owned();
            return Err(self.fault(4, Problem::Duplicate { metric, first_line }));
        }
        self.seen[metric] = Some((block, number));
        let p50 = parse_p50(p50).map_err(|fault| {
            let found = quoted(p50);
            let problem = match fault {
                NumberFault::Form => Problem::Number { found },
                NumberFault::NotFinite => Problem::NotFinite { found },
                NumberFault::NotPositive => Problem::NotPositive { found },
                NumberFault::Digits => Problem::Digits { found },
            };
            self.fault(7, problem)
        })?;
        if let Some(last) = self.commits.last_mut() {
            last.rows.push(Row { metric, p50 });
        }
        Ok(())
    }

    /// The cells of a line under the current header's columns; those that a legacy file lacks are
    /// empty.
    fn split<'a>(&self, line: &'a str) -> Result<[&'a str; 8], Fault> {
        if line.is_empty() {
            return Err((
                Column {
                    number: 1,
                    name: "",
                },
                Problem::EmptyLine,
            ));
        }
        let first = match self.layout {
            Layout::Current => 0,
            Layout::Legacy => LEGACY_FIRST,
        };
        let wanted = COLUMNS.len() - first;
        let mut cells = [""; 8];
        let mut found = 0;
        for cell in line.split(',') {
            let Some(place) = cells.get_mut(first + found) else {
                let column = Column {
                    number: wanted + 1,
                    name: "",
                };
                return Err((column, Problem::Extra { wanted }));
            };
            *place = cell;
            found += 1;
        }
        if found < wanted {
            return Err(self.fault(first + found, Problem::Short { found, wanted }));
        }
        Ok(cells)
    }

    fn check_identity(&mut self, platform: &str, abi: &str, processors: &str) -> Result<(), Fault> {
        if let Some(known) = &self.identity
            && platform == known.platform
            && plain_number(abi) == Some(known.microvm_abi_version)
            && plain_number(processors) == Some(known.processors)
            && (self.commits.last().is_some() || !self.named)
        {
            return Ok(());
        }
        if HostKind::of_platform(platform).is_none() {
            return Err(self.fault(
                0,
                Problem::Platform {
                    found: quoted(platform),
                },
            ));
        }
        let Some((abi_number, allowed)) = KNOWN_ABIS
            .iter()
            .find(|(known, _)| plain_number(abi) == Some(*known))
        else {
            return Err(self.fault(1, Problem::Abi { found: quoted(abi) }));
        };
        let Some(processor_count) =
            plain_number(processors).filter(|count| allowed.contains(count))
        else {
            let problem = Problem::Processors {
                found: quoted(processors),
                abi: *abi_number,
                allowed,
            };
            return Err(self.fault(2, problem));
        };
        let found = Identity {
            platform: platform.to_owned(),
            microvm_abi_version: *abi_number,
            processors: processor_count,
        };
        let wanted = self.identity.get_or_insert_with(|| found.clone()).clone();
        self.compare_identity(&found, &wanted)
    }

    fn compare_identity(&self, found: &Identity, wanted: &Identity) -> Result<(), Fault> {
        let differs = [
            (found.platform.clone(), wanted.platform.clone()),
            (
                found.microvm_abi_version.to_string(),
                wanted.microvm_abi_version.to_string(),
            ),
            (found.processors.to_string(), wanted.processors.to_string()),
        ];
        for (index, (found, wanted)) in differs.into_iter().enumerate() {
            if found != wanted {
                let problem = if self.named {
                    Problem::OtherFile { found, wanted }
                } else {
                    Problem::OtherRows { found, wanted }
                };
                return Err(self.fault(index, problem));
            }
        }
        Ok(())
    }

    /// Starts a commit's block where the line is the first of one.
    fn open_block(&mut self, number: usize, commit: &str) -> Result<(), Fault> {
        if let Some(last) = self.commits.last() {
            if last.commit == commit {
                return Ok(());
            }
            self.finished.insert(last.commit.clone(), number - 1);
        }
        if !check_commit(commit) {
            return Err(self.fault(
                3,
                Problem::Commit {
                    found: quoted(commit),
                },
            ));
        }
        if let Some(&last_line) = self.finished.get(commit) {
            let commit = commit.to_owned();
            return Err(self.fault(3, Problem::SecondBlock { commit, last_line }));
        }
        self.commits.push(CommitRows {
            commit: commit.to_owned(),
            rows: Vec::new(),
        });
        Ok(())
    }

    /// The index of the line's metric; its first row defines it.
    fn metric(
        &mut self,
        number: usize,
        name: &str,
        unit: &str,
        direction: &str,
    ) -> Result<usize, Fault> {
        if let Some(&index) = self.by_name.get(name) {
            let (known, first_line) = (&self.metrics[index], self.first_lines[index]);
            for (column, what, found, wanted) in [
                (5, "unit", unit, known.unit.as_str()),
                (6, "direction", direction, known.direction.word()),
            ] {
                if found != wanted {
                    let (found, wanted) = (quoted(found), wanted.to_owned());
                    let problem = Problem::Changed {
                        what,
                        found,
                        wanted,
                        first_line,
                    };
                    return Err(self.fault(column, problem));
                }
            }
            return Ok(index);
        }
        self.check_word(4, name, MAX_NAME_BYTES)?;
        self.check_word(5, unit, MAX_UNIT_BYTES)?;
        let direction = match direction {
            "lower" => Direction::Lower,
            "higher" => Direction::Higher,
            other => {
                return Err(self.fault(
                    6,
                    Problem::Direction {
                        found: quoted(other),
                    },
                ));
            }
        };
        if self.metrics.len() == MAX_METRICS {
            return Err(self.fault(4, Problem::TooManyMetrics));
        }
        self.check_prefix(name)?;
        let index = self.metrics.len();
        self.metrics.push(Metric {
            name: name.to_owned(),
            unit: unit.to_owned(),
            direction,
        });
        self.first_lines.push(number);
        self.seen.push(None);
        self.by_name.insert(name.to_owned(), index);
        Ok(index)
    }

    fn check_prefix(&mut self, name: &str) -> Result<(), Fault> {
        let Some((_, ending)) = Prefix::split(name) else {
            return Ok(());
        };
        if let Some(&other) = self.endings.get(ending) {
            let problem = Problem::BothPrefixes {
                metric: name.to_owned(),
                other: self.metrics[other].name.clone(),
                first_line: self.first_lines[other],
            };
            return Err(self.fault(4, problem));
        }
        self.endings.insert(ending.to_owned(), self.metrics.len());
        Ok(())
    }

    fn check_word(&self, column: usize, word: &str, limit: usize) -> Result<(), Fault> {
        let good = !word.is_empty()
            && word.len() <= limit
            && word
                .bytes()
                .all(|byte| byte.is_ascii_graphic() && byte != b'"' && byte != b'\'');
        if good {
            return Ok(());
        }
        let found = quoted(word);
        Err(self.fault(column, Problem::Word { found, limit }))
    }

    /// A fault at a column, given by its place in [`COLUMNS`].
    fn fault(&self, column: usize, problem: Problem) -> Fault {
        let first = match self.layout {
            Layout::Current => 0,
            Layout::Legacy => LEGACY_FIRST,
        };
        let column = Column {
            number: column - first.min(column) + 1,
            name: COLUMNS.get(column).copied().unwrap_or(""),
        };
        (column, problem)
    }
}

/// Whether a text is a commit's object name: 40 or 64 lower-case hexadecimal digits.
pub(crate) fn check_commit(text: &str) -> bool {
    matches!(text.len(), 40 | 64)
        && text
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn header_fault(problem: Problem) -> Fault {
    (
        Column {
            number: 1,
            name: "",
        },
        problem,
    )
}

/// The start of a text, with everything that could disturb a terminal escaped.
fn quoted(text: &str) -> String {
    let mut start: String = text.chars().take(QUOTED_CHARACTERS).collect();
    if start.len() < text.len() {
        start.push_str("...");
    }
    start.escape_debug().to_string()
}
