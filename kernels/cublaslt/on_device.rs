//! The library beside our kernels, on a GPU or on the emulated device and its stand-in for the library.

use std::path::PathBuf;

use burn::tensor::{Device, Tensor};

use super::*;
use crate::compare::distance;
use crate::cuda::zeros;
use crate::linear::cuda::{Product, product, product_shared_out};
use crate::linear::tuning::tests::problem;
use crate::linear::tuning::{
    Decision, begin_deciding, decide, decide_as, decisions, learn, settle_decisions, use_library,
};
use crate::testing::cuda_device;

/// The stand-in for the library on the emulated device.
fn stand_in() -> Option<PathBuf> {
    let emulated = std::env::var_os("CUDA_PATH").map(PathBuf::from)?;
    Some(emulated.join("cublaslt/libcublasLt.so.13")).filter(|path| path.exists())
}

/// As [`device_and_library`], where the library is the stand-in, of whose algorithms more is known.
pub(crate) fn device_and_stand_in() -> Option<(Device, usize)> {
    stand_in()?;
    device_and_library()
}

/// A device and the version of its library. It is skipped where there is none.
pub(crate) fn device_and_library() -> Option<(Device, usize)> {
    let device = cuda_device()?;
    let version = seek(&device, &Vec::from_iter(stand_in()));
    if version.is_none() {
        eprintln!("skipped: there is no cuBLASLt");
    }
    Some((device, version?))
}

fn matrix(device: &Device, seed: u64, [rows, columns]: [usize; 2]) -> CudaTensor {
    let numbers = crate::compare::random(seed, rows, columns);
    primitive(numbers.to_device(device).cast(DType::BF16))
}

fn on_host(tensor: CudaTensor) -> Tensor<2> {
    Tensor::from_data(into_tensor(tensor).into_data().convert::<f32>(), &Device::flex())
}

/// The three products with the shapes of their operands, in sizes that no tile divides.
fn products() -> [(Product, [usize; 3], [[usize; 2]; 2]); 5] {
    [
        (Product::Forward, [67, 72, 40], [[67, 40], [72, 40]]),
        (Product::Forward, [130, 264, 136], [[130, 136], [264, 136]]),
        (Product::Input, [67, 40, 72], [[67, 72], [72, 40]]),
        (Product::Weight, [72, 40, 67], [[67, 72], [67, 40]]),
        (Product::Weight, [8, 16, 700], [[700, 8], [700, 16]]),
    ]
}

#[test]
fn every_product_is_within_the_rounding_of_ours_and_may_be_added_to_another() {
    let Some((device, version)) = device_and_library() else { return };
    learn("").unwrap();
    for (which, size, [a, b]) in products_of(&device) {
        use_library(None);
        let ours = on_host(product(which, &a, &b, 0.5));
        let before = super::products();
        let form = which.form(size);
        let right = right_ones(form, [&a, &b], &product(which, &a, &b, 1.0));
        assert!(!right.is_empty(), "{size:?}");
        use_library(Some(version));
        let (_, splits, _) = crate::linear::cuda::tiling(which, &a, size);
        for algorithm in right {
            decide(&which.problem(size, splits), Decision::Library(vec![algorithm]));
            let once = product(which, &a, &b, 0.5);
            let error = distance(&on_host(once.clone()), &ours);
            let bound = if which == Product::Weight { 1e-5 } else { 4e-3 };
            assert!(error <= bound, "{size:?}: {error:e}");
            crate::linear::cuda::product_into(which, &a, &b, 0.5, (&once).into(), true);
            let error = distance(&on_host(once), &ours.clone().mul_scalar(2.0));
            assert!(error <= bound, "{size:?}, added: {error:e}");
        }
        assert!(super::products() > before, "{size:?} was not computed by the library");
    }
    use_library(None);
}

fn products_of(device: &Device) -> Vec<(Product, [usize; 3], [CudaTensor; 2])> {
    let made = products().into_iter();
    made.map(|(which, size, [a, b])| (which, size, [matrix(device, 1, a), matrix(device, 2, b)])).collect()
}

/// As the gradients of adapters that share an input.
#[test]
fn a_product_whose_rows_belong_to_several_matrices_is_within_the_rounding_of_ours() {
    let Some((device, version)) = device_and_library() else { return };
    learn("").unwrap();
    let (a, b) = (matrix(&device, 1, [700, 48]), matrix(&device, 2, [700, 40]));
    let size = [48, 40, 700];
    let shared_out = || {
        let to = [8, 16, 24].map(|rows| zeros(&a, [rows, 40], DType::F32));
        // Written, and then added to.
        for added in [false, true] {
            product_shared_out(&a, &b, &to, added);
        }
        Tensor::cat(to.map(on_host).to_vec(), 0)
    };
    use_library(None);
    let ours = shared_out();
    assert!(distance(&ours, &on_host(product(Product::Weight, &a, &b, 2.0))) < 1e-5);
    let right = right_ones(Product::Weight.form(size), [&a, &b], &product(Product::Weight, &a, &b, 1.0));
    let (_, splits, _) = crate::linear::cuda::tiling(Product::Weight, &a, size);
    use_library(Some(version));
    decide(&Product::Weight.problem(size, splits), Decision::Library(vec![right[0]]));
    let before = super::products();
    let error = distance(&shared_out(), &ours);
    assert_eq!(super::products() - before, 2);
    assert!(error <= 1e-5, "{error:e}");
    use_library(None);
}

/// The algorithms whose numbers are those of `ours`, but for rounding.
fn right_ones(form: Form, [a, b]: [&CudaTensor; 2], ours: &CudaTensor) -> Vec<Algorithm> {
    let expected = on_host(ours.clone());
    let is_right = |one: &Algorithm| {
        repeated(form, *one, [a, b, ours]).is_some_and(|found| {
            distance(&Tensor::from_data(found.convert::<f32>(), &Device::flex()), &expected) < 1e-2
        })
    };
    search(form, a, 8).into_iter().filter(is_right).collect()
}

/// The stand-in for the library finds three algorithms that must not be used: one that splits `k`, one that
/// gives other bits in a second launch, and one whose numbers are wrong.
#[test]
fn an_algorithm_whose_bits_may_vary_is_not_used() {
    let Some((device, _)) = device_and_stand_in() else { return };
    let (a, b) = (matrix(&device, 1, [66, 40]), matrix(&device, 2, [72, 40]));
    let (form, c) = (Form::forward([66, 72, 40]), product(Product::Forward, &a, &b, 1.0));
    let found = search(form, &a, 8);
    let repeatable = found.iter().filter(|one| repeated(form, **one, [&a, &b, &c]).is_some()).count();
    let right = right_ones(form, [&a, &b], &c);
    assert_eq!((found.len(), repeatable, right.len()), (4, 3, 2), "{found:?}");
    // The library does not suggest one of them for an odd number of tokens, and says so when it is asked.
    let odd = Form::forward([67, 72, 40]);
    assert_eq!(search(odd, &a, 8).len(), 3);
    let fit = right.iter().filter(|one| fitting(vec![(odd, **one)], &a).is_some()).count();
    assert_eq!(fit, 1, "{right:?}");
    // For more tokens it takes more workspace.
    let wider = right.iter().filter_map(|one| fitting(vec![(Form::forward([132, 72, 40]), *one)], &a));
    let workspaces: Vec<usize> = wider.map(|found| found[0].workspace_bytes).collect();
    assert_eq!(workspaces, [0, 64 * 132]);
    let of_another = Algorithm { version: right[0].version + 1, ..right[0] };
    assert_eq!(fitting(vec![(form, right[0]), (form, of_another)], &a), None);
}

#[test]
fn what_reads_a_product_of_unwritten_numbers_is_told_so() {
    let Some((device, _)) = device_and_library() else { return };
    let (a, b) = (matrix(&device, 1, [67, 40]), matrix(&device, 2, [72, 40]));
    let form = Form::forward([67, 72, 40]);
    let Some(mut wrong) = search(form, &a, 1).pop() else { panic!("there is an algorithm") };
    wrong.version += 1;
    let c = product(Product::Forward, &a, &b, 1.0);
    multiply(form, wrong, 1.0, &a, &b, &c, false);
    let right = search(form, &a, 1)[0];
    let further = product(Product::Forward, &a, &b, 1.0);
    // Of a result that was never written, nothing is computed.
    let x = matrix(&device, 3, [67, 72]);
    multiply(Form::input([67, 40, 72]), right, 1.0, &x, &c, &further, false);
    for tensor in [c, further] {
        let read = cubecl::future::block_on(tensor.client.sync_buffers([&tensor.handle]));
        let told = format!("{:?}", read.unwrap_err());
        assert!(told.contains("the algorithm is one of cuBLASLt"), "{told}");
    }
}

#[test]
fn a_decision_is_measured_recorded_and_followed() {
    let Some((device, version)) = device_and_library() else { return };
    learn("").unwrap();
    use_library(Some(version));
    let problems = [
        problem("linear_forward", &[72, 40], 1, 67),
        problem("lora_linear_forward", &[72, 40, 24], 1, 67),
        problem("lora_linears_backward_input", &[40, 24, 72, 16], 1, 67),
        problem("lora_linears_backward_input", &[40, 0, 72, 16], 1, 67),
        // Rows of 12 numbers do not begin at multiples of 16 bytes.
        problem("linear_backward_input", &[40, 12], 1, 67),
    ];
    problems[0].measure(&device);
    assert_eq!(decisions(), "", "nobody decides");
    begin_deciding();
    for problem in &problems {
        problem.measure(&device);
    }
    settle_decisions();
    let lines = decisions();
    assert_eq!(lines.lines().count(), problems.len(), "{lines}");
    assert!(lines.contains(&format!("linear_backward_input 40,12 1 67 by own:{version}\n")), "{lines}");
    decide_as("").unwrap();
    assert_eq!(decisions(), "");
    decide_as(&lines).unwrap();
    assert_eq!(decisions(), lines);
    use_library(None);
}
