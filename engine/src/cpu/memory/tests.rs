//! Buffers are apart, zero and aligned, and memory is committed as it is touched.

use super::*;

#[test]
fn buffers_of_an_arena_are_zero_apart_and_aligned() {
    let mut arena = Arena::with_room(3 * HUGE_BYTES);
    // The last ones no longer fit in the first mapping, nor does the largest in a usual one.
    let sizes = [
        0,
        1,
        63,
        64,
        65,
        HUGE_BYTES,
        5,
        2 * HUGE_BYTES,
        SLAB_BYTES + 1,
        7,
    ];
    let mut buffers: Vec<Buffer> = sizes
        .iter()
        .map(|bytes| arena.take(*bytes).expect("memory"))
        .collect();
    for (mark, (buffer, bytes)) in (1..).zip(buffers.iter_mut().zip(sizes)) {
        assert_eq!((buffer.bytes(), buffer.pointer().addr() % LINE), (bytes, 0));
        let content = buffer.as_mut_slice();
        assert!(content.iter().all(|byte| *byte == 0));
        content.fill(mark);
    }
    // What an arena has handed out outlives it.
    drop(arena);
    for (mark, buffer) in (1..).zip(&mut buffers) {
        assert!(buffer.as_mut_slice().iter().all(|byte| *byte == mark));
    }
}

#[test]
fn floats_are_the_whole_ones_of_the_bytes() {
    let mut buffer = Arena::default().take(11).expect("memory");
    buffer.floats_mut().copy_from_slice(&[1.5, -2.0]);
    assert_eq!(
        buffer.as_mut_slice()[..8],
        [0, 0, 0xc0, 0x3f, 0, 0, 0, 0xc0]
    );
}

#[test]
fn memory_that_nothing_has_is_refused() {
    for bytes in [usize::MAX, usize::MAX - 1000, 1 << 62] {
        assert!(Arena::default().take(bytes).is_err(), "{bytes}");
        assert!(Mapping::new(bytes).is_err(), "{bytes}");
    }
    assert!(Mapping::new(0).is_err());
}

/// Bytes of the mapping that are resident, from the system's own table of pages of 4 KiB.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn resident(mapping: &Mapping) -> usize {
    use std::os::unix::fs::FileExt;
    let mut entries = vec![0; mapping.length / 4096 * 8];
    let table = std::fs::File::open("/proc/self/pagemap").expect("a table of pages");
    let first = (mapping.base.as_ptr().addr() / 4096 * 8) as u64;
    table.read_exact_at(&mut entries, first).expect("entries");
    // The top bit of an entry of eight bytes says "present".
    let present = entries.chunks(8).filter(|entry| entry[7] & 0x80 != 0);
    present.count() * 4096
}

#[test]
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn a_touched_place_commits_one_huge_page_at_most() {
    let mapping = Mapping::new(64 * HUGE_BYTES).expect("address space");
    assert_eq!(mapping.base.as_ptr().addr() % HUGE_BYTES, 0);
    assert_eq!(resident(&mapping), 0);
    for touched in 1..=8 {
        let at = (touched - 1) * 8 * HUGE_BYTES + 12_345;
        // SAFETY: inside the mapping, which is this test's own.
        unsafe { mapping.base.add(at).write(1) };
        let resident = resident(&mapping);
        assert!(
            (1..=touched * HUGE_BYTES).contains(&resident),
            "{touched} places touched: {resident} bytes resident"
        );
    }
}
