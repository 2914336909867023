//! The client's side of the control protocol.

use std::path::Path;

use nvx_host::{ControlSocketError, ControlStream, StreamRead};

use super::protocol::{CONTROL_VERSION, MAX_LINE_BYTES, Response, ResponseResult, WireRequest};

/// Why a VM could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The socket cannot be used.
    #[error(transparent)]
    Socket(#[from] ControlSocketError),
    /// The VM closed the connection without an answer.
    #[error("the VM ended before it answered")]
    NoAnswer,
    /// What came is no response of this version.
    #[error("the VM's answer cannot be read")]
    Malformed(#[source] serde_json::Error),
    /// The VM speaks another version.
    #[error(
        "the VM answers in version {version} of the protocol, this is version {CONTROL_VERSION}"
    )]
    Version {
        /// The version.
        version: u32,
    },
    /// The answer is longer than any answer is.
    #[error("the VM's answer is longer than {MAX_LINE_BYTES} bytes")]
    TooLong,
}

/// A connection to a running VM.
#[derive(Debug)]
pub struct Client {
    stream: ControlStream,
}

impl Client {
    /// Connects to the VM that listens at `path`.
    ///
    /// # Errors
    /// [`ClientError::Socket`].
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        Ok(Self {
            stream: ControlStream::connect(path)?,
        })
    }

    /// Sends a request, whose version is filled in here, and waits for its answer.
    ///
    /// # Errors
    /// [`ClientError`]; that the VM refuses is an answer, not an error.
    pub fn ask(&mut self, request: WireRequest) -> Result<ResponseResult, ClientError> {
        let request = WireRequest {
            version: CONTROL_VERSION,
            ..request
        };
        let mut line = serde_json::to_vec(&request).map_err(ClientError::Malformed)?;
        line.push(b'\n');
        let mut sent = 0;
        while sent < line.len() {
            match self.stream.write(&line[sent..]) {
                Some(length) => sent += length,
                // A VM that takes no request may have said why before it hung up.
                None => break,
            }
        }
        let answer = self.read_line()?;
        let response: Response = serde_json::from_slice(&answer).map_err(ClientError::Malformed)?;
        if response.version != CONTROL_VERSION {
            return Err(ClientError::Version {
                version: response.version,
            });
        }
        Ok(response.result)
    }

    fn read_line(&self) -> Result<Vec<u8>, ClientError> {
        let mut line = Vec::new();
        let mut chunk = [0; 4096];
        while !line.contains(&b'\n') {
            match self.stream.read(&mut chunk) {
                StreamRead::Data(length) => line.extend_from_slice(&chunk[..length]),
                StreamRead::Nothing => {}
                StreamRead::End => return Err(ClientError::NoAnswer),
            }
            if line.len() > MAX_LINE_BYTES {
                return Err(ClientError::TooLong);
            }
        }
        Ok(line)
    }
}
