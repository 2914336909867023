use super::*;

const NAME: &str = "data/linux-kvm-virtual-machine-microvm-v2-1vcpu.csv";
const ROW: &str = "linux-kvm-virtual-machine,2,1";

fn commit(digit: char) -> String {
    digit.to_string().repeat(40)
}

fn row(commit_digit: char, metric: &str, p50: &str) -> String {
    format!("{ROW},{},{metric},ms,lower,{p50}\n", commit(commit_digit))
}

fn good() -> String {
    format!(
        "{HEADER}\n{}{}",
        row('a', "cold", "1.5"),
        row('a', "warm", "2")
    )
}

fn fails(name: &str, content: impl AsRef<[u8]>) -> String {
    History::parse(Path::new(name), content.as_ref(), NameRule::History)
        .expect_err("must be refused")
        .to_string()
}

#[test]
fn a_file_is_read_and_written_back_byte_for_byte() {
    let content = format!("{}{}", good(), row('b', "cold", "20185.4387123"));
    let history = History::parse(Path::new(NAME), content.as_bytes(), NameRule::History)
        .expect("well formed");
    assert_eq!(history.metrics.len(), 2);
    assert_eq!(history.commits.len(), 2);
    assert_eq!(history.row_count(), 3);
    assert_eq!(
        history.values(0).collect::<Vec<_>>(),
        [(0, 1.5), (1, 20185.4387123)]
    );
    assert_eq!(history.values(1).collect::<Vec<_>>(), [(0, 2.0)]);
    assert_eq!(history.to_csv(), content);
}

#[test]
fn the_legacy_header_takes_the_platform_from_the_file_s_name() {
    let content = format!("{LEGACY_HEADER}\n{},cold,ms,lower,3\n", commit('1'));
    let path = Path::new("windows-whp-bare-metal.csv");
    let history = History::parse(path, content.as_bytes(), NameRule::History).expect("well formed");
    assert_eq!(history.identity.platform, "windows-whp-bare-metal");
    assert_eq!(history.identity.microvm_abi_version, 1);
    assert_eq!(history.to_csv(), content);
    let text = fails("rows.csv", &content);
    assert!(
        text.contains("rows.csv:1: column 1: 'rows' is no platform"),
        "{text}"
    );
    let text = fails("windows-whp-bare-metal.csv", content.replace(",3", ",0"));
    assert!(
        text.contains(":2: column 5 (p50): '0' is not above zero"),
        "{text}"
    );
}

#[test]
fn rows_may_have_any_file_name_but_must_agree() {
    let path = Path::new("rows.csv");
    let rows = History::parse(path, good().as_bytes(), NameRule::Rows).expect("well formed");
    assert_eq!(
        rows.identity.file_name(),
        "linux-kvm-virtual-machine-microvm-v2-1vcpu.csv"
    );
    let mixed = good() + &row('b', "cold", "1").replace(",2,1,", ",2,4,");
    let text = History::parse(path, mixed.as_bytes(), NameRule::Rows)
        .expect_err("two identities")
        .to_string();
    assert!(
        text.contains(":4: column 3 (processors): '4', but the rows before say '1'"),
        "{text}"
    );
    let none = History::parse(path, format!("{HEADER}\n").as_bytes(), NameRule::Rows);
    assert!(none.is_err());
}

#[test]
fn the_whole_file_must_be_plain_text() {
    for (content, wanted) in [
        (Vec::new(), ":1: column 1: the file is empty"),
        (
            [b"\xef\xbb\xbf", good().as_bytes()].concat(),
            ":1: column 1: a UTF-8 byte order mark",
        ),
        (
            good().replace('\n', "\r\n").into_bytes(),
            ":1: column 8: a carriage return",
        ),
        (
            good().replace("2\n", "2\r\n").into_bytes(),
            ":3: column 8: a carriage return",
        ),
        (
            good().replace("warm", "w\u{e4}rm").into_bytes(),
            ":3: column 5 (metric): 'w\u{e4}rm' must be",
        ),
        (
            [
                good().replace("warm,ms,lower,2\n", "w").as_bytes(),
                b"\xff,ms,lower,2\n",
            ]
            .concat(),
            ":3: column 5: not UTF-8",
        ),
        (
            good().trim_end().as_bytes().to_vec(),
            ":3: column 8: the last line has no line feed",
        ),
        (
            good().as_bytes()[..good().len() - 12].to_vec(),
            ":3: column 5: the last line",
        ),
        (
            format!("{}\n", good()).into_bytes(),
            ":4: column 1: an empty line",
        ),
        (
            good().replace("platform,", "plat,").into_bytes(),
            ":1: column 1: the header is",
        ),
        (
            good().replace(",p50", ",mean").into_bytes(),
            ":1: column 8: the header is",
        ),
        (
            good().as_bytes()[HEADER.len() + 1..].to_vec(),
            ":1: column 1: the header is",
        ),
    ] {
        let text = fails(NAME, content);
        assert!(text.contains(wanted), "{text} should contain {wanted}");
        assert!(text.starts_with(NAME), "{text}");
    }
    assert!(fails(NAME, good().replace('\n', "\r\n")).contains("core.autocrlf"));
}

#[test]
fn every_wrong_cell_is_named_with_line_and_column() {
    let changed = |from: &str, to: &str| good() + &row('b', "cold", "7").replace(from, to);
    for (from, to, wanted) in [
        (
            ",lower,7",
            ",lower",
            "column 8 (p50): the line has 7 of 8 columns",
        ),
        (",7", ",7,8", "column 9: one column too many"),
        (
            "linux-",
            "windows-",
            "column 1 (platform): 'windows-kvm-virtual-machine', but the file's name says",
        ),
        (
            "linux-kvm",
            "kvm",
            "column 1 (platform): 'kvm-virtual-machine' is no platform",
        ),
        (
            ",2,1,",
            ",1,1,",
            "column 2 (microvm_abi_version): '1', but the file's name",
        ),
        (
            ",2,1,",
            ",3,1,",
            "column 2 (microvm_abi_version): '3' is no known",
        ),
        (
            ",2,1,",
            ",02,1,",
            "column 2 (microvm_abi_version): '02' is no known",
        ),
        (
            ",2,1,",
            ",2,3,",
            "column 3 (processors): '3' processors; ABI 2 has [1, 2, 4, 8]",
        ),
        (",2,1,", ",2,5,", "column 3 (processors): '5' processors"),
        (
            ",2,1,",
            ",2,4,",
            "column 3 (processors): '4', but the file's name says '1'",
        ),
        ("bbbbb", "BBBBB", "column 4 (commit): "),
        (",bbb", ",b", "column 4 (commit): "),
        ("cold", "", "column 5 (metric): '' must be"),
        ("cold", "\"cold\"", "column 5 (metric): "),
        (
            ",ms,",
            ",us,",
            "column 6 (unit): 'us', but the metric's unit is 'ms' since line 2",
        ),
        (
            "lower",
            "higher",
            "column 7 (direction): 'higher', but the metric's direction is 'lower' since line 2",
        ),
        (
            "cold,ms,lower",
            "new,ms,best",
            "column 7 (direction): 'best' is no direction",
        ),
        (",7", ",nan", "column 8 (p50): 'nan' is not finite"),
        (",7", ",1e400", "column 8 (p50): '1e400' is not finite"),
        (",7", ",0", "column 8 (p50): '0' is not above zero"),
        (",7", ",-7", "column 8 (p50): '-7' is not above zero"),
        (
            ",7",
            ",seven",
            "column 8 (p50): 'seven' is no decimal number",
        ),
        (
            ",7",
            ",1.2345678901234",
            "column 8 (p50): '1.2345678901234' has more than 12",
        ),
    ] {
        let text = fails(NAME, changed(from, to));
        assert!(
            text.contains(&format!(":4: {wanted}")),
            "{text} should contain {wanted}"
        );
    }
}

#[test]
fn rows_must_be_blocks_without_duplicates() {
    let text = fails(
        NAME,
        good() + &row('b', "cold", "1") + &row('a', "other", "1"),
    );
    assert!(
        text.contains(":5: column 4 (commit): commit aaaa"),
        "{text}"
    );
    assert!(text.contains("has rows up to line 3;"), "{text}");
    let text = fails(NAME, good() + &row('a', "cold", "1"));
    assert!(
        text.contains(":4: column 5 (metric): metric 'cold' of this commit stands in line 2"),
        "{text}"
    );
}

#[test]
fn one_ending_under_two_prefixes_is_refused() {
    let content = good() + &row('b', "nvx_cold_start", "1") + &row('c', "openvmm_cold_start", "1");
    let text = fails(NAME, content);
    assert!(
        text.contains(":5: column 5 (metric): 'openvmm_cold_start' and 'nvx_cold_start' (line 4)"),
        "{text}"
    );
}

#[test]
fn the_file_s_name_must_say_what_it_holds() {
    let text = fails("data/history.csv", good());
    assert!(
        text.contains(":1: column 1: the file's name must have the form"),
        "{text}"
    );
    let text = fails("linux-kvm-bare-metal-microvm-v2-1vcpu.csv", good());
    assert!(
        text.contains(":2: column 1 (platform): 'linux-kvm-virtual-machine', but"),
        "{text}"
    );
    let text = fails("linux-kvm-virtual-machine-microvm-v2-3vcpu.csv", good());
    assert!(
        text.contains(":2: column 3 (processors): '1', but the file's name says '3'"),
        "{text}"
    );
}

#[test]
fn a_file_with_thousands_of_metrics_is_refused_at_the_first_too_many() {
    let rows: String = (0..3000)
        .map(|index| row('a', &format!("metric_{index}"), "1"))
        .collect();
    let text = fails(NAME, format!("{HEADER}\n{rows}"));
    assert!(
        text.contains(":1002: column 5 (metric): more than 1000 metrics"),
        "{text}"
    );
}

#[test]
fn directories_and_absent_files_are_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let text = History::read(directory.path(), NameRule::History)
        .expect_err("a directory")
        .to_string();
    assert!(
        text.ends_with("is a directory, not a history file"),
        "{text}"
    );
    let absent = History::read(&directory.path().join("absent.csv"), NameRule::History);
    assert!(matches!(absent, Err(HistoryError::Read { .. })));
}

#[test]
fn a_header_alone_is_a_history_without_rows() {
    let content = format!("{HEADER}\n");
    let history = History::parse(Path::new(NAME), content.as_bytes(), NameRule::History)
        .expect("well formed");
    assert_eq!(history, History::empty(history.identity.clone()));
}
