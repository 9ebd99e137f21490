//! A step allocates nothing: everything was allocated when the engine was built.
#![allow(missing_docs, unsafe_code)] // Counts the allocator's calls.

mod common;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use baton_engine::{Batch, LogitRows, SequenceSlice, StepEngine};
use baton_kv_cache::{KvDtype, PageIndex};
use baton_model_file::{TensorType, fixtures::TinyModel};
use common::{engine, load, options};

struct Counting;

static CALLS: AtomicU64 = AtomicU64::new(0);

// SAFETY: hands everything to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_step_allocates_nothing() {
    let shape = TinyModel::default().with_type(TensorType::Q4_1);
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("tiny.gguf");
    shape.write_gguf(&path).expect("the model is written");
    let model = load(&path);
    let dtypes = [KvDtype::Bf16, KvDtype::Int8];
    for (page_size, dtype) in [16, 7]
        .into_iter()
        .flat_map(|size| dtypes.map(|dtype| (size, dtype)))
    {
        let mut engine = engine(&model, &options(3, None), page_size, 64, dtype);
        let tables: Vec<Vec<PageIndex>> = (0..4)
            .map(|at| (at * 16..(at + 1) * 16).map(PageIndex).collect())
            .collect();
        let ids = [3; 50];
        let slices: Vec<_> = tables
            .iter()
            .zip([50, 1, 20, 1])
            .map(|(pages, tokens)| SequenceSlice {
                token_ids: &ids[..tokens],
                position: 0,
                pages,
                logits: LogitRows::Last,
            })
            .collect();
        let batch = Batch {
            copies: &[(PageIndex(15), PageIndex(31))],
            slices: &slices,
        };
        let mut allocations = || {
            let before = CALLS.load(Relaxed);
            engine.step(&batch, &mut |_| {}).expect("a step");
            CALLS.load(Relaxed) - before
        };
        // Threads may still be starting during the first.
        allocations();
        assert_eq!(
            [allocations(), allocations()],
            [0, 0],
            "{dtype:?} pages of {page_size}"
        );
    }
}
