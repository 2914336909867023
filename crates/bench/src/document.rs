//! Reading results, so that whatever is wrong with one is named by its file and member.

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::compare::{
    BuildSamples, COMPARISON_SCHEMA, COMPARISON_SCHEMA_VERSION, ComparisonResult,
};
use crate::result::{
    LIFECYCLE_SCHEMA, LIFECYCLE_SCHEMA_VERSION, LifecycleResult, PeakRss, Teardown, TimeSeries,
};
use crate::validate::{FieldError, Node};

/// Why a result cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It is no JSON.
    #[error("{} is not JSON", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The parser's reason.
        source: serde_json::Error,
    },
    /// A member is missing or of a wrong type.
    #[error("{}: {field}", path.display())]
    Type {
        /// The file.
        path: PathBuf,
        /// The member, with its parents.
        field: String,
        /// What was expected.
        source: serde_json::Error,
    },
    /// A member has a wrong value.
    #[error("{}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// The member and what is wrong with it.
        source: FieldError,
    },
}

/// Reads a result of `nvx bench lifecycle`.
///
/// # Errors
/// The file cannot be read or is none of this version.
pub fn read_lifecycle(path: &Path) -> Result<LifecycleResult, DocumentError> {
    let document = read_json(path)?;
    expect_schema(path, &document, LIFECYCLE_SCHEMA, LIFECYCLE_SCHEMA_VERSION)?;
    deserialize(path, &document)
}

/// Reads a result of `nvx bench compare`. Its verdicts are made anew from its samples.
///
/// # Errors
/// The file cannot be read, is none of this version, or has samples that nothing could have measured.
pub fn read_comparison(path: &Path) -> Result<ComparisonResult, DocumentError> {
    let document = read_json(path)?;
    expect_schema(
        path,
        &document,
        COMPARISON_SCHEMA,
        COMPARISON_SCHEMA_VERSION,
    )?;
    check_samples(&document).map_err(|source| value_error(path, source))?;
    let result: ComparisonResult = deserialize(path, &document)?;
    check_counts(&result).map_err(|source| value_error(path, source))?;
    Ok(result.judged())
}

fn value_error(path: &Path, source: FieldError) -> DocumentError {
    DocumentError::Value {
        path: path.to_owned(),
        source,
    }
}

fn read_json(path: &Path) -> Result<Value, DocumentError> {
    let content = std::fs::read(path).map_err(|source| DocumentError::Read {
        path: path.to_owned(),
        source,
    })?;
    serde_json::from_slice(&content).map_err(|source| DocumentError::Json {
        path: path.to_owned(),
        source,
    })
}

fn expect_schema(
    path: &Path,
    document: &Value,
    schema: &str,
    version: u32,
) -> Result<(), DocumentError> {
    let root = Node::root(document);
    let expected = |name: &str, wanted: Value| root.get(name)?.expect(&wanted);
    expected("schema", schema.into())
        .and_then(|()| expected("schema_version", version.into()))
        .map_err(|source| value_error(path, source))
}

fn deserialize<T: DeserializeOwned>(path: &Path, document: &Value) -> Result<T, DocumentError> {
    from_value(document).map_err(|(field, source)| DocumentError::Type {
        path: path.to_owned(),
        field,
        source,
    })
}

/// A document, or a section of one, as what it is; of a wrong one the member that is at fault.
pub(crate) fn from_value<T: DeserializeOwned>(
    document: &Value,
) -> Result<T, (String, serde_json::Error)> {
    serde_path_to_error::deserialize(document).map_err(|error| {
        let parent = error.path().to_string();
        let source = error.into_inner();
        // A missing member is named by the reason.
        let within = match source.to_string().starts_with("missing field") {
            true => None,
            false => within_series(document, &parent),
        };
        within.unwrap_or((parent, source))
    })
}

/// What is wrong within a section that is put together of series. Serde tells no member of such a section,
/// only that the section is wrong.
fn within_series(document: &Value, parent: &str) -> Option<(String, serde_json::Error)> {
    /// The first wrong member of `section` as a `T`.
    fn wrong<T: DeserializeOwned>(section: &Value) -> Option<(String, serde_json::Error)> {
        let error = serde_path_to_error::deserialize::<_, T>(section).err()?;
        Some((error.path().to_string(), error.into_inner()))
    }
    let section = document
        .pointer(&pointer(&parent.replace('[', ".").replace(']', "")))
        .or_else(|| section_of_phase(document, parent))
        .filter(|section| section.is_object())?;
    let (field, source) = wrong::<TimeSeries>(section)
        .or_else(|| wrong::<PeakRss>(section))
        .or_else(|| wrong::<Teardown>(section))?;
    Some((format!("{parent}.{field}"), source))
}

/// The section of a phase, whose name has a point in it.
fn section_of_phase<'a>(document: &'a Value, parent: &str) -> Option<&'a Value> {
    let (profile, phase) = match parent.split_once(".phases.") {
        Some(within) => within,
        None => ("", parent.strip_prefix("phases.")?),
    };
    document
        .pointer(&pointer(profile))?
        .get("phases")?
        .get(phase)
}

/// A path with points as a JSON pointer (RFC 6901).
fn pointer(path: &str) -> String {
    let parts = path.split('.').filter(|part| !part.is_empty());
    parts.map(|part| format!("/{part}")).collect()
}

/// The samples of every build of a comparison: finite and above zero.
fn check_samples(document: &Value) -> Result<(), FieldError> {
    for build in Node::root(document).get("builds")?.elements()? {
        for series in build.get("samples")?.members()? {
            series.samples()?;
        }
    }
    Ok(())
}

/// Of everything that is tested there are as many samples of every build.
fn check_counts(result: &ComparisonResult) -> Result<(), FieldError> {
    let wrong = |field: String, what: String| FieldError::Wrong { field, what };
    let [base, _, ..] = result.builds.as_slice() else {
        let what = format!("has {} of them, needs two", result.builds.len());
        return Err(wrong("builds".to_owned(), what));
    };
    let tested = std::iter::once(&result.tests.primary).chain(&result.tests.secondaries);
    for metric in tested {
        let count = |build: &BuildSamples| build.samples.get(metric).map_or(0, Vec::len);
        for (index, build) in result.builds.iter().enumerate() {
            if count(build) == 0 || count(build) != count(base) {
                let field = format!("builds[{index}].samples.{}", metric.ending());
                let what = format!(
                    "has {} samples, the first build {}",
                    count(build),
                    count(base)
                );
                return Err(wrong(field, what));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
