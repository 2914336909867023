//! Firecracker: configured by a file, captured and restored by requests to its API socket.
//!
//! The requests are those of its public API description (`src/firecracker/swagger/firecracker.yaml`).

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::PeerError;
use super::connection::{Connection, ConnectionError};
use super::contender::{Captured, Contender, Explained, FirstWords, TurnFiles, UNTOLD};
use crate::lifecycle::LifecycleRequest;
use crate::monitor::Monitor;

pub(super) struct Firecracker {
    pub(super) program: PathBuf,
    /// Bounds every wait.
    pub(super) limit: Duration,
}

/// A request to the API.
struct ApiRequest {
    method: &'static str,
    target: &'static str,
    body: Value,
}

impl ApiRequest {
    fn shown(&self) -> String {
        format!("{} {} {}", self.method, self.target, self.body)
    }
}

impl Firecracker {
    fn state(files: &TurnFiles) -> PathBuf {
        files.snapshot.join("state")
    }

    fn memory(files: &TurnFiles) -> PathBuf {
        files.snapshot.join("memory")
    }

    fn configuration(request: &LifecycleRequest, files: &TurnFiles) -> Value {
        json!({
            "boot-source": {
                "kernel_image_path": files.kernel,
                "boot_args": request.guest.command_line(),
            },
            "machine-config": {
                "vcpu_count": request.vcpus,
                "mem_size_mib": request.memory_bytes >> 20,
            },
            "drives": [],
        })
    }

    fn capture_requests(files: &TurnFiles) -> [ApiRequest; 2] {
        [
            ApiRequest {
                method: "PATCH",
                target: "/vm",
                body: json!({"state": "Paused"}),
            },
            ApiRequest {
                method: "PUT",
                target: "/snapshot/create",
                body: json!({
                    "snapshot_type": "Full",
                    "snapshot_path": Self::state(files),
                    "mem_file_path": Self::memory(files),
                }),
            },
        ]
    }

    fn load_request(files: &TurnFiles) -> ApiRequest {
        ApiRequest {
            method: "PUT",
            target: "/snapshot/load",
            body: json!({
                "snapshot_path": Self::state(files),
                "mem_backend": {"backend_type": "File", "backend_path": Self::memory(files)},
                "resume_vm": true,
            }),
        }
    }

    fn connect(&self, monitor: &mut Monitor, files: &TurnFiles) -> Result<Connection, PeerError> {
        let alive = || !monitor.has_ended();
        Ok(Connection::open(&files.socket, self.limit, alive)?)
    }
}

impl Contender for Firecracker {
    fn name(&self) -> &'static str {
        "firecracker"
    }

    fn program(&self) -> &Path {
        &self.program
    }

    fn prepare(&self, request: &LifecycleRequest, files: &TurnFiles) -> Result<(), PeerError> {
        let text = Self::configuration(request, files).to_string();
        std::fs::write(&files.configuration, text).map_err(PeerError::file(&files.configuration))
    }

    fn start(&self, _request: &LifecycleRequest, files: &TurnFiles) -> Vec<OsString> {
        vec![
            "--api-sock".into(),
            files.socket.clone().into(),
            "--config-file".into(),
            files.configuration.clone().into(),
        ]
    }

    fn capture(&self, mut monitor: Monitor, files: &TurnFiles) -> Result<Captured, PeerError> {
        std::fs::create_dir(&files.snapshot).map_err(PeerError::file(&files.snapshot))?;
        let mut connection = self.connect(&mut monitor, files)?;
        let requested = Instant::now();
        for request in Self::capture_requests(files) {
            carry_out(&mut connection, &request)?;
        }
        Ok(Captured {
            elapsed: requested.elapsed(),
            peak_rss_bytes: monitor.peak_rss_bytes(),
        })
    }

    fn restore(&self, _request: &LifecycleRequest, files: &TurnFiles) -> Vec<OsString> {
        vec!["--api-sock".into(), files.socket.clone().into()]
    }

    fn resume(&self, monitor: &mut Monitor, files: &TurnFiles) -> Result<(), PeerError> {
        let mut connection = self.connect(monitor, files)?;
        carry_out(&mut connection, &Self::load_request(files))
    }

    fn first_words(&self) -> FirstWords {
        UNTOLD
    }

    fn requests(&self, files: &TurnFiles) -> Vec<Explained> {
        let explained = |step: &str, request: &ApiRequest| Explained {
            step: step.to_owned(),
            command: format!("API {}", request.shown()),
        };
        let captures = Self::capture_requests(files);
        let mut all: Vec<Explained> = captures
            .iter()
            .map(|request| explained("capture", request))
            .collect();
        all.push(explained("restore", &Self::load_request(files)));
        all
    }
}

/// Sends a request over HTTP/1.1 (RFC 9112) and expects success.
fn carry_out(connection: &mut Connection, request: &ApiRequest) -> Result<(), PeerError> {
    let body = request.body.to_string();
    connection.send(&format!(
        "{} {} HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        request.method,
        request.target,
        body.len()
    ))?;
    let (status, answer) = answer(connection)?;
    let success = status
        .split_ascii_whitespace()
        .nth(1)
        .is_some_and(|code| code.starts_with('2'));
    match success {
        true => Ok(()),
        false => Err(PeerError::Refused {
            request: request.shown(),
            why: format!("{status} {answer}"),
        }),
    }
}

/// The status line and the body.
fn answer(connection: &mut Connection) -> Result<(String, String), ConnectionError> {
    let status = connection.line()?;
    let mut length = 0;
    loop {
        let line = connection.line()?;
        if line.is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            // A length that is no number is a body that cannot be read; the status says enough.
            length = value.trim().parse().unwrap_or(0);
        }
    }
    Ok((status, connection.text(length)?))
}
