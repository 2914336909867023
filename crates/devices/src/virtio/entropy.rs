//! Entropy device (Virtual I/O Device specification 1.2, section 5.4): fills the driver's buffers with
//! random bytes of the host.

use nvx_memory::GuestMemory;

use super::mmio::VirtioModel;
use super::queue::{Chain, Queue, QueueError};

const DEVICE_ID: u32 = 4;
const QUEUE_SIZES: [u16; 1] = [64];
/// The most bytes for one chain; a driver asks again for more. Bounds how long a vCPU stays here.
const CHAIN_MAX_BYTES: usize = 4096;

/// Where random bytes come from. The call may not block.
pub trait EntropySource: Send {
    /// Fills `target` and returns how many of its first bytes are random.
    fn fill(&mut self, target: &mut [u8]) -> usize;
}

/// The entropy device.
pub struct Entropy {
    source: Box<dyn EntropySource>,
}

impl Entropy {
    /// A device that gives bytes of `source`.
    #[must_use]
    pub fn new(source: Box<dyn EntropySource>) -> Self {
        Self { source }
    }

    /// Fills the chain's buffers, and returns how many bytes were written.
    fn fill(&mut self, chain: &Chain, memory: &GuestMemory) -> Result<u32, QueueError> {
        let mut bytes = [0; CHAIN_MAX_BYTES];
        let mut written = 0;
        for buffer in chain
            .descriptors
            .iter()
            .filter(|buffer| buffer.device_writes)
        {
            let wanted = usize::try_from(buffer.length_bytes).unwrap_or(usize::MAX);
            let length = wanted.min(CHAIN_MAX_BYTES - written);
            let Some(target) = bytes.get_mut(..length) else {
                break;
            };
            let filled = self.source.fill(target).min(length);
            memory.write(buffer.address, &target[..filled])?;
            written += filled;
            if filled < wanted {
                break;
            }
        }
        // At most the bound above.
        Ok(written as u32)
    }
}

impl VirtioModel for Entropy {
    fn device_id(&self) -> u32 {
        DEVICE_ID
    }

    fn kind(&self) -> &'static str {
        "nvx.virtio-rng"
    }

    fn queue_sizes(&self) -> &'static [u16] {
        &QUEUE_SIZES
    }

    fn serve(
        &mut self,
        _index: usize,
        queue: &mut Queue,
        memory: &GuestMemory,
    ) -> Result<bool, QueueError> {
        let mut served = false;
        // No more than the queue holds: those were there when the driver told of them, and of each later
        // one it tells again. Another vCPU that adds chains all the time must not keep this one here.
        for _ in 0..queue.size {
            let Some(chain) = queue.take(memory)? else {
                break;
            };
            let written = self.fill(&chain, memory)?;
            queue.give_back(memory, &chain, written)?;
            served = true;
        }
        Ok(served)
    }
}
