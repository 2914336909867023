//! Members of a result, each with its path, so that whatever is wrong is named.

use std::path::PathBuf;

use serde_json::Value;

/// Stored statistics may differ from recomputed ones by what printing and reading a number costs.
const TOLERANCE: f64 = 1e-9;

/// What is wrong with a result.
#[derive(Debug, thiserror::Error)]
pub enum FieldError {
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
    /// A member is missing.
    #[error("{field} is missing")]
    Missing {
        /// The member, with its parents.
        field: String,
    },
    /// A member has a wrong value.
    #[error("{field} {what}")]
    Wrong {
        /// The member, with its parents.
        field: String,
        /// What is wrong.
        what: String,
    },
}

/// A member.
pub(crate) struct Node<'a> {
    value: &'a Value,
    path: String,
}

impl<'a> Node<'a> {
    pub(crate) fn root(value: &'a Value) -> Self {
        Self {
            value,
            path: String::new(),
        }
    }

    pub(crate) fn value(&self) -> &'a Value {
        self.value
    }

    pub(crate) fn get(&self, name: &str) -> Result<Self, FieldError> {
        self.optional(name).ok_or_else(|| FieldError::Missing {
            field: self.child(name),
        })
    }

    pub(crate) fn optional(&self, name: &str) -> Option<Self> {
        let value = self.value.get(name).filter(|value| !value.is_null())?;
        Some(Self {
            value,
            path: self.child(name),
        })
    }

    fn child(&self, name: &str) -> String {
        if self.path.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.path)
        }
    }

    pub(crate) fn fault(&self, what: impl Into<String>) -> FieldError {
        FieldError::Wrong {
            field: self.path.clone(),
            what: what.into(),
        }
    }

    /// The elements of a list, whose paths have their index.
    pub(crate) fn elements(&self) -> Result<Vec<Self>, FieldError> {
        let list = self
            .value
            .as_array()
            .ok_or_else(|| self.fault("must be a list"))?;
        let element = |(index, value)| Self {
            value,
            path: format!("{}[{index}]", self.path),
        };
        Ok(list.iter().enumerate().map(element).collect())
    }

    /// The members of an object.
    pub(crate) fn members(&self) -> Result<Vec<Self>, FieldError> {
        let object = self
            .value
            .as_object()
            .ok_or_else(|| self.fault("must be an object"))?;
        let member = |(name, value): (&String, &'a Value)| Self {
            value,
            path: self.child(name),
        };
        Ok(object.iter().map(member).collect())
    }

    pub(crate) fn text(&self) -> Result<&'a str, FieldError> {
        self.value
            .as_str()
            .ok_or_else(|| self.fault("must be a text"))
    }

    pub(crate) fn boolean(&self) -> Result<bool, FieldError> {
        self.value
            .as_bool()
            .ok_or_else(|| self.fault("must be true or false"))
    }

    pub(crate) fn whole(&self) -> Result<u64, FieldError> {
        self.value
            .as_u64()
            .ok_or_else(|| self.fault("must be a whole number"))
    }

    pub(crate) fn expect(&self, wanted: &Value) -> Result<(), FieldError> {
        if self.value == wanted {
            return Ok(());
        }
        Err(self.fault(format!("must be {wanted}, is {}", self.value)))
    }

    /// Finite numbers above zero.
    pub(crate) fn samples(&self) -> Result<Vec<f64>, FieldError> {
        let list = self
            .value
            .as_array()
            .ok_or_else(|| self.fault("must be a list of samples"))?;
        list.iter()
            .enumerate()
            .map(|(index, value)| match value.as_f64() {
                Some(sample) if sample.is_finite() && sample > 0.0 => Ok(sample),
                _ => Err(self.fault(format!(
                    "has as sample {} {value}, must be a finite number above 0",
                    index + 1
                ))),
            })
            .collect()
    }

    pub(crate) fn equals(&self, computed: f64) -> Result<(), FieldError> {
        let stored = self
            .value
            .as_f64()
            .ok_or_else(|| self.fault("must be a number"))?;
        if (stored - computed).abs() <= TOLERANCE * computed.abs() {
            return Ok(());
        }
        Err(self.fault(format!("is {stored}, its samples give {computed}")))
    }
}
