//! Decompressing a stream whose length nobody knows yet: tar archives and kernel modules.
//!
//! The history that a decoder keeps is bounded; how much is read from it, the reader decides.

use std::io::{self, BufRead, Read};

use ruzstd::decoding::StreamingDecoder;

use crate::kernel::Compression;

/// Most history that a decoder may keep, in bytes: what `zstd -22 --ultra` and `xz -9` want.
const HISTORY_MAX_BYTES: u64 = 128 << 20;

/// A reader of what `packed` holds, all parts of it if it was joined of several.
///
/// # Errors
/// The beginning is damaged, or it is LZ4, which neither archives nor modules are packed by.
pub fn stream_decoder<'a>(
    compression: Compression,
    packed: impl BufRead + 'a,
) -> io::Result<Box<dyn Read + 'a>> {
    Ok(match compression {
        Compression::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(packed)),
        Compression::Xz => {
            let limit_kib = (HISTORY_MAX_BYTES >> 10) as u32 + 1024;
            Box::new(lzma_rust2::XzReader::new_mem_limit(packed, true, limit_kib))
        }
        Compression::Zstd => Box::new(ZstdFrames {
            frame: Some(zstd_frame(packed)?),
        }),
        Compression::Lz4Legacy => {
            let what = "packed by LZ4, which is for kernels only";
            return Err(io::Error::new(io::ErrorKind::Unsupported, what));
        }
    })
}

/// Reads `packed` to its end, but gives at most `limit_bytes` bytes.
///
/// # Errors
/// It is damaged.
pub fn decompress_up_to(
    compression: Compression,
    packed: &[u8],
    limit_bytes: u64,
) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    stream_decoder(compression, packed)?
        .take(limit_bytes)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn zstd_frame<R: Read>(
    packed: R,
) -> io::Result<StreamingDecoder<R, ruzstd::decoding::FrameDecoder>> {
    StreamingDecoder::new_with_max_window_size(packed, HISTORY_MAX_BYTES).map_err(io::Error::other)
}

/// Frames one after the other: the library's decoder ends with the first.
struct ZstdFrames<R: BufRead> {
    frame: Option<StreamingDecoder<R, ruzstd::decoding::FrameDecoder>>,
}

impl<R: BufRead> Read for ZstdFrames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(mut frame) = self.frame.take() {
            let length = frame.read(buffer)?;
            if length > 0 || buffer.is_empty() {
                self.frame = Some(frame);
                return Ok(length);
            }
            let mut packed = frame.into_inner();
            if !packed.fill_buf()?.is_empty() {
                self.frame = Some(zstd_frame(packed)?);
            }
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use super::*;

    /// What the program makes of `bytes`; none where it is missing.
    fn packed(program: &str, bytes: &[u8]) -> Option<Vec<u8>> {
        let child = Command::new(program)
            .arg("-c")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let Ok(mut child) = child else {
            eprintln!("not tried: there is no {program} here");
            return None;
        };
        child
            .stdin
            .take()
            .expect("a pipe")
            .write_all(bytes)
            .expect("written");
        let output = child.wait_with_output().expect("an end");
        assert!(output.status.success());
        Some(output.stdout)
    }

    #[test]
    fn every_format_is_read_whole_and_in_parts() {
        for (program, compression) in [
            ("gzip", Compression::Gzip),
            ("xz", Compression::Xz),
            ("zstd", Compression::Zstd),
        ] {
            let (Some(first), Some(second)) =
                (packed(program, b"hello "), packed(program, b"world"))
            else {
                continue;
            };
            let joined = [first, second].concat();
            assert_eq!(Compression::of(&joined), Some(compression));
            let all = decompress_up_to(compression, &joined, 100).expect("unpacked");
            assert_eq!(all, b"hello world", "{program}");
            let some = decompress_up_to(compression, &joined, 8).expect("unpacked");
            assert_eq!(some, b"hello wo", "{program}");
            let cut = &joined[..joined.len() - 4];
            assert!(
                decompress_up_to(compression, cut, 100).is_err(),
                "{program}"
            );
        }
    }
}
