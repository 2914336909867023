//! A tar archive: POSIX ustar and pax, with GNU's long names and large numbers, plain or compressed.
//!
//! The first pass reads headers and notes where each file's bytes stand; the second one goes through the
//! archive again, mostly forwards. An archive comes from anywhere: its headers carry checksums, and the
//! texts in extended headers are bounded before they are read.
//!
//! Sources: POSIX.1-2017 "pax Interchange Format"; "Basic Tar Format" of the GNU tar manual.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek as _, SeekFrom};

use crate::kernel::Compression;
use crate::stream_decoder::stream_decoder;

use super::{AddError, Attributes, Content, DeviceNumber, Initramfs, Kind, MAX_NAME_BYTES, lossy};

/// Headers are one block, and files are padded to whole blocks.
const BLOCK_BYTES: u64 = 512;
/// Most bytes of an extended header that are read into memory.
const EXTENDED_MAX_BYTES: u64 = 1 << 20;

/// What is wrong with a tar archive.
#[derive(Debug, thiserror::Error)]
pub enum TarError {
    /// It cannot be read or decompressed.
    #[error("reading at byte {offset}")]
    Read {
        /// Where, in the uncompressed archive.
        offset: u64,
        /// What the system or the decompressor said.
        source: io::Error,
    },
    /// The first block is no header.
    #[error("not a tar archive, plain or compressed by gzip, xz or Zstandard{looks_like}")]
    NotTar {
        /// What it looks like, as the end of a sentence; empty if that is not known.
        looks_like: &'static str,
    },
    /// A later block is no header.
    #[error("damaged: no header at byte {offset}")]
    Header {
        /// Where, in the uncompressed archive.
        offset: u64,
    },
    /// A field of a header is malformed.
    #[error("damaged: {field} of the header at byte {offset}")]
    Field {
        /// Which field.
        field: &'static str,
        /// Where, in the uncompressed archive.
        offset: u64,
    },
    /// It ends within a file.
    #[error("cut off: {name} goes on beyond its end")]
    CutOff {
        /// Whose bytes are missing.
        name: String,
    },
    /// It has something that cannot be unpacked.
    #[error("{name} is {what}, which cannot be unpacked; make the archive without it")]
    Unsupported {
        /// The entry.
        name: String,
        /// What it is.
        what: &'static str,
    },
}

/// What can go wrong while an archive is added.
pub(super) enum Failure {
    Tar(TarError),
    Add(AddError),
}

impl From<TarError> for Failure {
    fn from(error: TarError) -> Self {
        Self::Tar(error)
    }
}

impl From<AddError> for Failure {
    fn from(error: AddError) -> Self {
        Self::Add(error)
    }
}

/// An open archive.
#[derive(Debug)]
pub(super) struct TarSource {
    file: File,
    compression: Option<Compression>,
}

impl TarSource {
    pub(super) fn new(mut file: File) -> io::Result<Self> {
        let mut magic = Vec::new();
        (&mut file).take(8).read_to_end(&mut magic)?;
        Ok(Self {
            compression: Compression::of(&magic),
            file,
        })
    }

    /// The uncompressed archive from its beginning. There is one reader at a time: all share the
    /// file's position.
    fn read(&self) -> io::Result<Stream<'_>> {
        let mut file = &self.file;
        file.seek(SeekFrom::Start(0))?;
        let file = BufReader::with_capacity(64 << 10, file);
        Ok(Stream {
            position: 0,
            reader: match self.compression {
                Some(compression) => Reader::Packed(stream_decoder(compression, file)?),
                None => Reader::Plain(file),
            },
        })
    }
}

enum Reader<'a> {
    Plain(BufReader<&'a File>),
    Packed(Box<dyn Read + 'a>),
}

/// An uncompressed archive being read forwards.
struct Stream<'a> {
    reader: Reader<'a>,
    position: u64,
}

impl Read for Stream<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = match &mut self.reader {
            Reader::Plain(reader) => reader.read(buffer)?,
            Reader::Packed(reader) => reader.read(buffer)?,
        };
        self.position += length as u64;
        Ok(length)
    }
}

impl Stream<'_> {
    /// Goes forwards to `position`; false if the archive ends before it.
    fn go_to(&mut self, position: u64) -> io::Result<bool> {
        let distance = position.saturating_sub(self.position);
        if let Reader::Plain(reader) = &mut self.reader {
            let size = reader.get_ref().metadata()?.len();
            if position > size {
                return Ok(false);
            }
            if let Ok(distance) = i64::try_from(distance) {
                reader.seek_relative(distance)?;
                self.position += distance as u64;
                return Ok(true);
            }
        }
        let skipped = io::copy(&mut self.by_ref().take(distance), &mut io::sink())?;
        Ok(skipped == distance)
    }

    /// The next block; none at the end of the archive.
    fn block(&mut self) -> Result<Option<[u8; BLOCK_BYTES as usize]>, TarError> {
        let offset = self.position;
        let mut block = [0; BLOCK_BYTES as usize];
        match self.read_exact(&mut block) {
            Ok(()) => Ok(Some(block)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(source) => Err(TarError::Read { offset, source }),
        }
    }

    fn skip_to(&mut self, position: u64, name: &[u8]) -> Result<(), TarError> {
        let offset = self.position;
        match self.go_to(position) {
            Ok(true) => Ok(()),
            Ok(false) => Err(TarError::CutOff { name: lossy(name) }),
            Err(source) => Err(TarError::Read { offset, source }),
        }
    }
}

/// The files of an archive, for the second pass.
pub(super) struct Contents<'a> {
    source: &'a TarSource,
    stream: Option<Stream<'a>>,
}

impl<'a> Contents<'a> {
    pub(super) fn of(source: &'a TarSource) -> Self {
        Self {
            source,
            stream: None,
        }
    }

    /// A reader at `offset`. Going backwards begins anew.
    pub(super) fn at(&mut self, offset: u64) -> io::Result<impl Read + use<'_, 'a>> {
        let stream = match self.stream.take() {
            Some(stream) if stream.position <= offset => stream,
            _ => self.source.read()?,
        };
        let stream = self.stream.insert(stream);
        stream.go_to(offset)?;
        Ok(stream)
    }
}

/// One header, with what extended headers before it said.
struct Header<'a> {
    block: &'a [u8; BLOCK_BYTES as usize],
    offset: u64,
    extended: Extended,
}

/// What extended headers say of the entry that follows them.
#[derive(Clone, Debug, Default)]
struct Extended {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    numbers: HashMap<&'static str, u64>,
    is_sparse: bool,
}

/// Adds the archive with number `archive`.
pub(super) fn add(initramfs: &mut Initramfs, archive: usize) -> Result<(), Failure> {
    // Taken out while it is read, since what is read changes the plan that holds it.
    let source = initramfs.archives.remove(archive);
    let result = add_from(initramfs, &source, archive);
    initramfs.archives.insert(archive, source);
    result
}

fn add_from(initramfs: &mut Initramfs, source: &TarSource, archive: usize) -> Result<(), Failure> {
    let mut stream = source
        .read()
        .map_err(|source| TarError::Read { offset: 0, source })?;
    let mut global = Extended::default();
    let mut extended = None::<Extended>;
    loop {
        let offset = stream.position;
        let Some(block) = stream.block()? else {
            // An archive without its two last blocks is as good, but an empty file is none.
            return if offset == 0 {
                Err(not_tar(&[]).into())
            } else {
                Ok(())
            };
        };
        if block.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        if !has_checksum(&block) {
            return Err(match offset {
                0 => not_tar(&block),
                offset => TarError::Header { offset },
            }
            .into());
        }
        let type_flag = block[156];
        let mut header = Header {
            block: &block,
            offset,
            extended: extended.clone().unwrap_or_else(|| global.clone()),
        };
        if matches!(type_flag, b'x' | b'g' | b'L' | b'K') {
            let text = header.text(&mut stream)?;
            match type_flag {
                b'g' => global.apply_records(&text, offset)?,
                b'x' => header.extended.apply_records(&text, offset)?,
                b'L' => header.extended.path = Some(until_nul(&text).to_vec()),
                _ => header.extended.link = Some(until_nul(&text).to_vec()),
            }
            if type_flag != b'g' {
                extended = Some(header.extended);
            }
            continue;
        }
        extended = None;
        header.add_to(initramfs, archive, &mut stream)?;
    }
}

impl Header<'_> {
    /// The bytes after an extended header.
    fn text(&self, stream: &mut Stream<'_>) -> Result<Vec<u8>, TarError> {
        let size = self.octal("size", 124..136)?;
        if size > EXTENDED_MAX_BYTES {
            return Err(self.field("size"));
        }
        let mut text = vec![0; size as usize];
        stream.read_exact(&mut text).map_err(|source| {
            let offset = stream.position;
            TarError::Read { offset, source }
        })?;
        stream.skip_to(end_of_data(self.offset, size), b"an extended header")?;
        Ok(text)
    }

    fn add_to(
        &self,
        initramfs: &mut Initramfs,
        archive: usize,
        stream: &mut Stream<'_>,
    ) -> Result<(), Failure> {
        let name = self.name();
        let unsupported = |what| TarError::Unsupported {
            name: lossy(&name),
            what,
        };
        if self.extended.is_sparse {
            return Err(unsupported("a sparse file").into());
        }
        let (kind, size) = match self.block[156] {
            b'0' | 0 | b'7' if name.ends_with(b"/") => (Kind::Directory, 0),
            b'0' | 0 | b'7' => (Kind::File, self.number("size", 124..136)?),
            b'1' => (Kind::File, 0),
            b'2' => (Kind::SymbolicLink, 0),
            b'3' => (Kind::CharacterDevice, 0),
            b'4' => (Kind::BlockDevice, 0),
            b'5' => (Kind::Directory, 0),
            b'6' => (Kind::Fifo, 0),
            // A volume's label, and a directory's list of names in an incremental archive.
            b'V' | b'D' => {
                let size = self.number("size", 124..136)?;
                return Ok(stream.skip_to(end_of_data(self.offset, size), &name)?);
            }
            b'S' => return Err(unsupported("a sparse file").into()),
            b'M' => return Err(unsupported("the rest of a file of another archive").into()),
            _ => return Err(unsupported("of an unknown kind").into()),
        };
        let is_link = self.block[156] == b'1';
        if name.len() > MAX_NAME_BYTES {
            return Err(AddError::NameTooLong { name: lossy(&name) }.into());
        }
        let placed = initramfs.place(&name)?;
        if initramfs.is_open(&placed) {
            if is_link {
                self.add_link(initramfs, &name, placed)?;
            } else {
                let (size, content) = match kind {
                    Kind::SymbolicLink => {
                        let target = self.link();
                        (target.len() as u64, Content::Bytes(target))
                    }
                    _ => {
                        let offset = self.offset + BLOCK_BYTES;
                        (size, Content::Tar { archive, offset })
                    }
                };
                let device = self.device(kind)?;
                initramfs.insert(placed, kind, self.attributes()?, device, size, content)?;
            }
        }
        Ok(stream.skip_to(end_of_data(self.offset, size), &name)?)
    }

    fn add_link(
        &self,
        initramfs: &mut Initramfs,
        name: &[u8],
        placed: Vec<u8>,
    ) -> Result<(), AddError> {
        let target = self.link();
        let target_placed = initramfs.place(&target)?;
        let entry = initramfs.by_name.get(&target_placed);
        let entry = entry.and_then(|index| initramfs.entries[*index].as_ref());
        let inode = entry.map(|entry| entry.inode);
        let linkable = |inode: &usize| initramfs.inodes[*inode].kind != Kind::Directory;
        let Some(inode) = inode.filter(linkable) else {
            return Err(AddError::LinkTarget {
                name: lossy(name),
                target: lossy(&target),
            });
        };
        if placed == target_placed {
            return Ok(());
        }
        initramfs.link(placed, inode)
    }

    fn name(&self) -> Vec<u8> {
        if let Some(path) = &self.extended.path {
            return path.clone();
        }
        let name = until_nul(&self.block[..100]);
        let prefix = until_nul(&self.block[345..500]);
        // GNU's own format has other things where ustar has the prefix.
        let is_ustar = self.block[257..263] == *b"ustar\0";
        if is_ustar && !prefix.is_empty() {
            [prefix, name].join(&b'/')
        } else {
            name.to_vec()
        }
    }

    fn link(&self) -> Vec<u8> {
        match &self.extended.link {
            Some(link) => link.clone(),
            None => until_nul(&self.block[157..257]).to_vec(),
        }
    }

    fn attributes(&self) -> Result<Attributes, TarError> {
        let id = |name, range| Ok(self.number(name, range)?.min(u32::MAX.into()) as u32);
        let modified_s = self.number("mtime", 136..148).unwrap_or(0);
        Ok(Attributes {
            permissions: self.octal("mode", 100..108)? as u32 & 0o7777,
            uid: id("uid", 108..116)?,
            gid: id("gid", 116..124)?,
            modified_s: modified_s.min(i64::MAX as u64) as i64,
        })
    }

    fn device(&self, kind: Kind) -> Result<DeviceNumber, TarError> {
        if !matches!(kind, Kind::CharacterDevice | Kind::BlockDevice) {
            return Ok(DeviceNumber::default());
        }
        let number = |name, range| {
            let number = u32::try_from(self.octal(name, range)?);
            number.map_err(|_| self.field(name))
        };
        Ok(DeviceNumber {
            major: number("devmajor", 329..337)?,
            minor: number("devminor", 337..345)?,
        })
    }

    /// A number that an extended header may give instead of the header.
    fn number(&self, name: &'static str, range: std::ops::Range<usize>) -> Result<u64, TarError> {
        match self.extended.numbers.get(name) {
            Some(number) => Ok(*number),
            None => self.octal(name, range),
        }
    }

    /// A number of the header: octal digits, or with the first bit set GNU's binary form. What is
    /// negative (a time before 1970) counts as 0.
    fn octal(&self, name: &'static str, range: std::ops::Range<usize>) -> Result<u64, TarError> {
        let field = &self.block[range];
        if field[0] & 0x80 != 0 {
            if field[0] & 0x40 != 0 {
                return Ok(0);
            }
            let (high, low) = field.split_at(field.len() - 7);
            if high[0] != 0x80 || high[1..].iter().any(|byte| *byte != 0) {
                return Err(self.field(name));
            }
            return Ok(low
                .iter()
                .fold(0, |number, byte| number << 8 | u64::from(*byte)));
        }
        let digits = until_nul(field).trim_ascii();
        let mut number = 0;
        for digit in digits {
            if !matches!(digit, b'0'..=b'7') {
                return Err(self.field(name));
            }
            // Twelve digits at most: no overflow.
            number = number << 3 | u64::from(digit - b'0');
        }
        Ok(number)
    }

    fn field(&self, field: &'static str) -> TarError {
        TarError::Field {
            field,
            offset: self.offset,
        }
    }
}

impl Extended {
    /// Takes in pax records: `LENGTH KEY=VALUE\n`, where the length counts the whole record.
    fn apply_records(&mut self, mut text: &[u8], offset: u64) -> Result<(), TarError> {
        let damaged = || TarError::Field {
            field: "extended record",
            offset,
        };
        // Some writers pad with zeros.
        while !text.is_empty() && text[0] != 0 {
            let space = text
                .iter()
                .position(|byte| *byte == b' ')
                .ok_or_else(damaged)?;
            let length: usize = std::str::from_utf8(&text[..space])
                .ok()
                .and_then(|digits| digits.parse().ok())
                .ok_or_else(damaged)?;
            let record = text.get(space + 1..length).ok_or_else(damaged)?;
            let record = record.strip_suffix(b"\n").ok_or_else(damaged)?;
            let equals = record
                .iter()
                .position(|byte| *byte == b'=')
                .ok_or_else(damaged)?;
            self.apply(&record[..equals], &record[equals + 1..])
                .ok_or_else(damaged)?;
            text = &text[length..];
        }
        Ok(())
    }

    /// None if the value is malformed.
    fn apply(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        let number_key = match key {
            b"size" => "size",
            b"uid" => "uid",
            b"gid" => "gid",
            b"mtime" => "mtime",
            // The kernel reads a name up to its first NUL, and so another one than was checked here.
            b"path" | b"linkpath" if value.contains(&0) => return None,
            b"path" => {
                self.path = Some(value.to_vec());
                return Some(());
            }
            b"linkpath" => {
                self.link = Some(value.to_vec());
                return Some(());
            }
            _ => {
                self.is_sparse |= key.starts_with(b"GNU.sparse.");
                return Some(());
            }
        };
        let text = std::str::from_utf8(value).ok()?;
        let number = if number_key == "mtime" {
            // A decimal fraction, which a header of cpio has no room for; 0 before 1970.
            let whole = text.split('.').next()?;
            if whole.starts_with('-') {
                0
            } else {
                whole.parse().ok()?
            }
        } else {
            text.parse().ok()?
        };
        self.numbers.insert(number_key, number);
        Some(())
    }
}

fn end_of_data(header_offset: u64, size: u64) -> u64 {
    let blocks = size.div_ceil(BLOCK_BYTES);
    (header_offset + BLOCK_BYTES).saturating_add(blocks.saturating_mul(BLOCK_BYTES))
}

/// The checksum is the sum of the header's bytes, its own field taken as spaces. Old writers summed
/// signed bytes.
fn has_checksum(block: &[u8; BLOCK_BYTES as usize]) -> bool {
    let field = until_nul(&block[148..156]).trim_ascii();
    let Some(expected) = std::str::from_utf8(field)
        .ok()
        .and_then(|digits| i64::from_str_radix(digits, 8).ok())
    else {
        return false;
    };
    let summed = |value: fn(u8) -> i64| -> i64 {
        let bytes = block.iter().enumerate();
        bytes
            .map(|(index, byte)| match index {
                148..156 => i64::from(b' '),
                _ => value(*byte),
            })
            .sum()
    };
    summed(i64::from) == expected || summed(|byte| i64::from(byte as i8)) == expected
}

fn not_tar(block: &[u8]) -> TarError {
    let looks_like = match block {
        [] => "; it is empty",
        [b'B', b'Z', b'h', ..] => "; it looks like bzip2: decompress it first",
        [b'0', b'7', b'0', b'7', b'0', b'1' | b'2' | b'7', ..] => {
            "; it looks like a cpio archive, which --initrd takes"
        }
        [b'P', b'K', 3, 4, ..] => "; it looks like a zip archive",
        [b'h', b's', b'q', b's', ..] => "; it looks like a squashfs image",
        _ => "",
    };
    TarError::NotTar { looks_like }
}

fn until_nul(field: &[u8]) -> &[u8] {
    let end = field.iter().position(|byte| *byte == 0);
    &field[..end.unwrap_or(field.len())]
}
