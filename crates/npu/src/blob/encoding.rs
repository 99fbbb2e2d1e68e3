//! The encoder and the decoder of blobs.

use std::collections::BTreeMap;
use std::io::Read;

use girih_file::quote;
use girih_tensor::{Error, Result};
use object::build::elf::{Builder, Relocation, SectionData, SectionId, SymbolId};
use object::elf;
use sha2::{Digest as _, Sha256};

use super::wire::{SectionReader, SectionWriter, Wire};
use crate::form::PassForm as _;
use crate::form::schedule::{Argument, BufferId, Core, Descriptor, DmaAddress, Launch, Schedule};
use crate::target::Target;

/// The version of the layout that is written and read.
const BLOB_LAYOUT: u32 = 4;

/// The machine in the ELF header: AMD's AI Engine (llvm-aie, EM_AIE).
const ELF_MACHINE: u16 = 264;

/// The type of all relocations: the address of an argument, in eight bytes.
const ADDRESS_RELOCATION: u32 = 1;

/// The size of a relocation entry with addend (`Elf64_Rela`).
const RELOCATION_BYTES: u64 = 24;

/// The bytes of the digest at the end of a blob.
const DIGEST_BYTES: usize = 32;

/// The maximum size of a blob.
const MAX_BLOB_BYTES: usize = 256 << 20;

/// Returns the SHA-256 of a text, in hex.
pub fn digest(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the digest of all figures of a target.
pub(super) fn figures(target: &Target) -> String {
    digest(&target.to_string())
}

/// Encodes a schedule as an ELF file, followed by the SHA-256 of all its bytes.
///
/// # Errors
/// When a name is not valid in an ELF file.
pub fn encode(schedule: &Schedule, target: &Target) -> Result<Vec<u8>> {
    let mut file = Builder::new(object::Endianness::Little, true);
    file.header.e_type = elf::ET_REL;
    file.header.e_machine = elf::Machine(ELF_MACHINE);
    let mut out = SectionWriter::default();
    BLOB_LAYOUT.put(&mut out);
    for word in [env!("CARGO_PKG_VERSION"), &schedule.target, &figures(target), &schedule.name] {
        word.to_owned().put(&mut out);
    }
    section(&mut file, ".girih", out.section());
    schedule.arguments.put(&mut out);
    section(&mut file, ".arguments", out.section());
    let mut symbols = Vec::new();
    for argument in &schedule.arguments {
        let symbol = file.symbols.add();
        symbol.name = argument.name.clone().into_bytes().into();
        symbol.set_st_info(elf::STB_GLOBAL, elf::STT_OBJECT);
        symbol.st_size = argument.bytes;
        symbols.push(symbol.id());
    }
    let strings = add(&mut file, ".strtab", elf::SHT_STRTAB, SectionData::String);
    let table = add(&mut file, ".symtab", elf::SHT_SYMTAB, SectionData::Symbol);
    file.sections.get_mut(table).sh_link_section = Some(strings);
    for (number, launch) in schedule.launches.iter().enumerate() {
        write_launch(&mut file, number, launch, (&symbols, table), &mut out);
    }
    let constants = section(&mut file, ".constants", out.constants());
    file.sections.get_mut(constants).sh_entsize = 4;
    add(&mut file, ".shstrtab", elf::SHT_STRTAB, SectionData::SectionString);
    file.set_section_sizes();
    let mut bytes = Vec::new();
    file.write(&mut bytes)
        .map_err(|error| Error::new(format!("{} cannot be encoded as a blob: {error}", schedule.name)))?;
    let digest = Sha256::digest(&bytes);
    bytes.extend_from_slice(&digest);
    Ok(bytes)
}

fn add(file: &mut Builder<'_>, name: &str, kind: elf::SectionType, data: SectionData<'static>) -> SectionId {
    let section = file.sections.add();
    section.name = name.as_bytes().to_vec().into();
    section.sh_type = kind;
    section.sh_addralign = 8;
    section.data = data;
    section.id()
}

fn section(file: &mut Builder<'_>, name: &str, bytes: Vec<u8>) -> SectionId {
    add(file, name, elf::SHT_PROGBITS, SectionData::Data(bytes.into()))
}

fn write_launch(
    file: &mut Builder<'_>,
    number: usize,
    launch: &Launch,
    (symbols, table): (&[SymbolId], SectionId),
    out: &mut SectionWriter,
) {
    launch.name.put(out);
    launch.resident.put(out);
    launch.buffers.put(out);
    launch.locks.put(out);
    launch.starts.put(out);
    launch.routes.put(out);
    launch.cascades.put(out);
    section(file, &format!(".launch.{number}"), out.section());
    for core in &launch.cores {
        core.put(out);
        section(file, &format!(".text.{number}.{}.{}", core.tile.column, core.tile.row), out.section());
    }
    let mut relocations = Vec::new();
    (launch.descriptors.len() as u64).put(out);
    for descriptor in &launch.descriptors {
        if let Some((r_offset, argument, offset)) = write_descriptor(descriptor, out) {
            let symbol = symbols.get(argument as usize).copied();
            let (r_type, r_addend) = (elf::RelocationType(ADDRESS_RELOCATION), offset as i64);
            relocations.push(Relocation { r_offset, symbol, r_type, r_addend });
        }
    }
    let patched = section(file, &format!(".descriptors.{number}"), out.section());
    let name = format!(".rela.descriptors.{number}");
    let list = add(file, &name, elf::SHT_RELA, SectionData::Relocation(relocations));
    let list = file.sections.get_mut(list);
    list.sh_link_section = Some(table);
    list.sh_info_section = Some(patched);
    list.sh_entsize = RELOCATION_BYTES;
    launch.commands.put(out);
    section(file, &format!(".commands.{number}"), out.section());
}

/// Appends a descriptor. If it accesses DRAM, returns the relocation: the offset
/// in the section, the argument and the byte offset in that.
fn write_descriptor(descriptor: &Descriptor, out: &mut SectionWriter) -> Option<(u64, u32, u64)> {
    descriptor.tile.put(out);
    descriptor.id.put(out);
    let relocation = match descriptor.address {
        DmaAddress::Buffer(buffer, offset) => {
            false.put(out);
            buffer.put(out);
            offset.put(out);
            None
        }
        DmaAddress::Argument(argument, offset) => {
            true.put(out);
            let at = out.len() as u64;
            out.extend_from_slice(&[0; 8]);
            Some((at, argument, offset))
        }
    };
    descriptor.dims.put(out);
    descriptor.iteration.put(out);
    descriptor.acquire.put(out);
    descriptor.release.put(out);
    descriptor.next.put(out);
    relocation
}

/// Reads a blob. Stops at the maximum size, as the length that the system reports
/// for a file may be wrong.
///
/// # Errors
/// When it cannot be read, and those of [`decode`].
pub fn read(from: impl Read, target: &Target) -> Result<Schedule> {
    decode(&bounded(from)?, target)
}

/// Reads a blob for the target that its head names.
///
/// # Errors
/// As [`read`], and when no target has that name.
pub fn read_for_its_target(from: impl Read) -> Result<Schedule> {
    let bytes = bounded(from)?;
    let file = elf_file(&bytes)?;
    let sections = Sections::of(&file)?;
    let BlobHead { made_for, name, .. } = BlobHead::of(&sections)?;
    let target = Target::named(&made_for).map_err(|error| error.of(format!("blob {}", quote(&name))))?;
    decoded(&sections, &target)
}

/// Decodes a blob and checks its schedule.
///
/// # Errors
/// When the bytes are not a blob, are too long, do not have their digest, or have another
/// version, another target or other figures of the target; when the schedule breaks a rule
/// of the target.
pub fn decode(bytes: &[u8], target: &Target) -> Result<Schedule> {
    let file = elf_file(bytes)?;
    decoded(&Sections::of(&file)?, target)
}

/// The bytes of a blob, and at most one more than it may have.
fn bounded(from: impl Read) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = from.take(MAX_BLOB_BYTES as u64 + 1).read_to_end(&mut bytes);
    read.map_err(|error| Error::new(format!("cannot be read: {error}")))?;
    Ok(bytes)
}

fn elf_file(bytes: &[u8]) -> Result<Builder<'_>> {
    if bytes.len() > MAX_BLOB_BYTES {
        return Err(Error::new(format!("has over {MAX_BLOB_BYTES} bytes, the maximum of a blob: remove it")));
    }
    let content = bytes.split_last_chunk::<DIGEST_BYTES>();
    let content = content.filter(|(content, stated)| Sha256::digest(content)[..] == stated[..]);
    let Some((content, _)) = content else {
        return Err(Error::new(format!(
            "this is not a blob, or it is damaged: its last {DIGEST_BYTES} bytes are not the SHA-256 of the others; \
             compile it again"
        )));
    };
    let file =
        Builder::read64(content).map_err(|error| Error::new(format!("this is not a blob: {error}")))?;
    if file.header.e_machine.0 != ELF_MACHINE {
        return Err(Error::new(format!(
            "this ELF file is for machine {}; a blob is for {ELF_MACHINE}",
            file.header.e_machine.0
        )));
    }
    Ok(file)
}

fn decoded(file: &Sections<'_>, target: &Target) -> Result<Schedule> {
    let BlobHead { made_for, digest, name } = BlobHead::of(file)?;
    if made_for != target.name {
        return Err(Error::new(format!("blob {name} is for the target {made_for}; this is {}", target.name)));
    }
    if digest != figures(target) {
        return Err(Error::new(format!(
            "blob {name} was made with other figures of {made_for}: compile it again"
        )));
    }
    let arguments: Vec<Argument> = file.whole(".arguments")?;
    let launches = (0..file.launches).map(|number| file.launch(number, arguments.len()));
    let launches = launches.collect::<Result<_>>()?;
    let schedule = Schedule { name, target: made_for, arguments, launches };
    match schedule.faults(target).first() {
        None => Ok(schedule),
        Some(fault) => {
            let (name, target) = (quote(&schedule.name), &target.name);
            Err(Error::new(format!("blob {name} breaks a rule of {target}: {fault}")))
        }
    }
}

/// What the section `.girih` says of a blob of this version.
struct BlobHead {
    /// The target's name.
    made_for: String,
    /// The digest of the target's figures.
    digest: String,
    /// The program's name.
    name: String,
}

impl BlobHead {
    fn of(file: &Sections<'_>) -> Result<BlobHead> {
        let mut head = SectionReader::new(file.data(".girih")?, &[]);
        let layout = u32::get(&mut head)?;
        if layout != BLOB_LAYOUT {
            return Err(Error::new(format!(
                "the blob has layout {layout}; this girih reads {BLOB_LAYOUT}: compile it again"
            )));
        }
        let [version, made_for, digest, name] = [(); 4].map(|()| String::get(&mut head));
        let (version, made_for, digest, name) = (version?, made_for?, digest?, name?);
        head.end()?;
        let own = env!("CARGO_PKG_VERSION");
        if version != own {
            return Err(Error::new(format!(
                "blob {name} is of girih {version}; this is {own}: compile it again"
            )));
        }
        Ok(BlobHead { made_for, digest, name })
    }
}

/// The relocations of one section: from the byte offset to the symbol's index and
/// the addend.
type Patches = BTreeMap<u64, (u32, u64)>;

/// The sections of a blob, by name.
struct Sections<'a> {
    data: BTreeMap<String, &'a [u8]>,
    patches: BTreeMap<String, Patches>,
    constants: &'a [[u8; 4]],
    launches: usize,
}

impl<'a> Sections<'a> {
    fn of(file: &'a Builder<'_>) -> Result<Sections<'a>> {
        let (data, patches) = (BTreeMap::new(), BTreeMap::new());
        let mut sections = Sections { data, patches, constants: &[], launches: 0 };
        let symbols: Vec<SymbolId> = file.symbols.iter().map(|symbol| symbol.id()).collect();
        for section in &file.sections {
            let name = String::from_utf8_lossy(&section.name).into_owned();
            let twice = match &section.data {
                SectionData::Data(data) => {
                    sections.launches += usize::from(name.starts_with(".launch."));
                    sections.data.insert(name.clone(), data.as_slice()).is_some()
                }
                SectionData::Relocation(list) => {
                    let mut patches = Patches::new();
                    for relocation in list {
                        let argument = symbols.iter().position(|id| Some(*id) == relocation.symbol);
                        let addend = u64::try_from(relocation.r_addend).ok();
                        let (Some(argument), Some(addend)) = (argument, addend) else {
                            return Err(Error::new(format!("{name} has a relocation without an argument")));
                        };
                        patches.insert(relocation.r_offset, (argument as u32, addend));
                    }
                    sections.patches.insert(name.clone(), patches).is_some()
                }
                _ => false,
            };
            if twice {
                return Err(Error::new(format!("the blob has two sections {name}")));
            }
        }
        let (constants, rest) =
            sections.data.get(".constants").map_or((&[][..], &[][..]), |data| data.as_chunks());
        if !rest.is_empty() {
            return Err(Error::new(format!(".constants ends with {} of a float's four bytes", rest.len())));
        }
        sections.constants = constants;
        Ok(sections)
    }

    fn data(&self, name: &str) -> Result<&'a [u8]> {
        self.data.get(name).copied().ok_or_else(|| Error::new(format!("the blob has no section {name}")))
    }

    /// Decodes a section that holds one value.
    fn whole<T: Wire>(&self, name: &str) -> Result<T> {
        let mut reader = SectionReader::new(self.data(name)?, self.constants);
        let value = T::get(&mut reader).and_then(|value| reader.end().map(|()| value));
        value.map_err(|error| error.of(name))
    }

    fn launch(&self, number: usize, arguments: usize) -> Result<Launch> {
        let name = format!(".launch.{number}");
        let mut reader = SectionReader::new(self.data(&name)?, self.constants);
        let mut launch = Launch {
            name: Wire::get(&mut reader)?,
            resident: Wire::get(&mut reader)?,
            buffers: Wire::get(&mut reader)?,
            locks: Wire::get(&mut reader)?,
            starts: Wire::get(&mut reader)?,
            routes: Wire::get(&mut reader)?,
            cascades: Wire::get(&mut reader)?,
            ..Launch::default()
        };
        reader.end()?;
        let prefix = format!(".text.{number}.");
        for name in self.data.keys().filter(|name| name.starts_with(&prefix)) {
            launch.cores.push(self.whole::<Core>(name)?);
        }
        launch.cores.sort_by_key(|core| core.tile);
        launch.commands = self.whole(&format!(".commands.{number}"))?;
        launch.descriptors = self.descriptors(number, arguments)?;
        Ok(launch)
    }

    fn descriptors(&self, number: usize, arguments: usize) -> Result<Vec<Descriptor>> {
        let name = format!(".descriptors.{number}");
        let none = Patches::new();
        let patches = self.patches.get(&format!(".rela{name}")).unwrap_or(&none);
        let bytes = self.data(&name)?;
        let mut reader = SectionReader::new(bytes, self.constants);
        let count = u64::get(&mut reader)?;
        if count > bytes.len() as u64 {
            return Err(Error::new(format!("{name} declares {count} descriptors in {} bytes", bytes.len())));
        }
        let read = (0..count).map(|_| read_descriptor(&mut reader, patches, arguments));
        let read = read.collect::<Result<_>>().map_err(|error| error.of(&name))?;
        reader.end()?;
        Ok(read)
    }
}

fn read_descriptor(
    reader: &mut SectionReader<'_>,
    patches: &Patches,
    arguments: usize,
) -> Result<Descriptor> {
    let (tile, id) = (Wire::get(reader)?, Wire::get(reader)?);
    let address = if bool::get(reader)? {
        let at = reader.at() as u64;
        reader.take(8)?;
        let patch = patches.get(&at).filter(|(argument, _)| (*argument as usize) < arguments);
        let (argument, offset) = *patch
            .ok_or_else(|| Error::new(format!("the descriptor's address at byte {at} has no relocation")))?;
        DmaAddress::Argument(argument, offset)
    } else {
        DmaAddress::Buffer(BufferId::get(reader)?, Wire::get(reader)?)
    };
    Ok(Descriptor {
        tile,
        id,
        address,
        dims: Wire::get(reader)?,
        iteration: Wire::get(reader)?,
        acquire: Wire::get(reader)?,
        release: Wire::get(reader)?,
        next: Wire::get(reader)?,
    })
}
