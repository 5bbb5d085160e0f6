//! Records apart from the consumer's events, taken many at a time. rust-rdkafka gives them one by one, each with an event, an
//! allocation and four readings of the clock, and a rebalance waits for all that were fetched before it.

use std::any::Any;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::NonNull;
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::message::OwnedHeaders;
use rdkafka::types::RDKafkaErrorCode;
use rdkafka_sys as sys;

use super::{NO_ERROR, Owned, bytes, copied_headers, forward};

/// What was fetched of the partitions that are [let through](RecordQueue::let_through) into it, apart from the consumer's events.
pub struct RecordQueue<'consumer, C: ConsumerContext> {
    queue: Owned<sys::rd_kafka_queue_t>,
    consumer: &'consumer BaseConsumer<C>,
}

/// One of the things in a [`RecordQueue`].
#[derive(Debug)]
pub enum Fetched<'queue> {
    /// A record.
    Record(FetchedRecord<'queue>),
    /// The end of the partition with this number.
    End(i32),
    /// Fetching failed.
    Error(RDKafkaErrorCode),
}

/// A record that librdkafka holds.
#[derive(Debug)]
pub struct FetchedRecord<'queue> {
    message: NonNull<sys::rd_kafka_message_t>,
    of: PhantomData<&'queue ()>,
}

impl<'consumer, C: ConsumerContext> RecordQueue<'consumer, C> {
    /// An empty one; `None` without memory.
    pub(in crate::io::kafka) fn new(consumer: &'consumer BaseConsumer<C>) -> Option<Self> {
        // SAFETY: the client is alive while `consumer` is borrowed; the queue is owned here, and this is its function.
        let queue = unsafe {
            Owned::new(sys::rd_kafka_queue_new(consumer.client().native_ptr()), sys::rd_kafka_queue_destroy)
        };
        Some(Self { queue: queue?, consumer })
    }

    /// Lets what is fetched of a partition come with this queue. `false`: librdkafka does not know the partition.
    pub fn let_through(&self, topic: &str, partition: i32) -> bool {
        forward(self.consumer, topic, partition, Some(&self.queue))
    }

    /// Waits up to `timeout` for something, and hands all that is there to `take`, until that returns `false`: the rest stays.
    pub fn take_each<F: FnMut(Fetched<'_>) -> bool>(&self, timeout: Duration, take: F) {
        let timeout_ms = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
        let client = self.consumer.client().native_ptr();
        let mut taking = Taking { take, client, panic: None };
        // SAFETY: the queue is alive; the function is only called until this returns, with `taking`, which nobody else uses
        // meanwhile.
        unsafe {
            sys::rd_kafka_consume_callback_queue(
                self.queue.as_ptr(),
                timeout_ms,
                Some(hand_over::<F>),
                std::ptr::from_mut(&mut taking).cast(),
            );
        }
        if let Some(panic) = taking.panic {
            resume_unwind(panic);
        }
    }
}

/// [`RecordQueue::take_each`], as librdkafka's function sees it.
struct Taking<F> {
    take: F,
    client: *mut sys::rd_kafka_t,
    /// It must not unwind into librdkafka.
    panic: Option<Box<dyn Any + Send>>,
}

/// # Safety
/// The message is alive, and `taking` a [`Taking<F>`] that nobody else uses.
unsafe extern "C" fn hand_over<F: FnMut(Fetched<'_>) -> bool>(
    message: *mut sys::rd_kafka_message_t,
    taking: *mut c_void,
) {
    // SAFETY: by this function's contract.
    let taking = unsafe { &mut *taking.cast::<Taking<F>>() };
    let Some(message) = NonNull::new(message) else { return };
    let goes_on = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: by this function's contract.
        let sys::rd_kafka_message_t { err, partition, .. } = *unsafe { message.as_ref() };
        (taking.take)(match err {
            NO_ERROR => Fetched::Record(FetchedRecord { message, of: PhantomData }),
            sys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR__PARTITION_EOF => Fetched::End(partition),
            error => Fetched::Error(error.into()),
        })
    }));
    if !matches!(goes_on, Ok(true)) {
        taking.panic = goes_on.err();
        // SAFETY: the client is alive as long as its queue. What is not handed over yet goes back to the queue.
        unsafe { sys::rd_kafka_yield(taking.client) };
    }
}

impl FetchedRecord<'_> {
    fn message(&self) -> &sys::rd_kafka_message_t {
        // SAFETY: alive as long as this, which only lives while it is handed over.
        unsafe { self.message.as_ref() }
    }

    /// The number of its partition.
    pub fn partition(&self) -> i32 {
        self.message().partition
    }

    /// Its offset.
    pub fn offset(&self) -> i64 {
        self.message().offset
    }

    /// Its key.
    pub fn key(&self) -> Option<&[u8]> {
        let message = self.message();
        // SAFETY: null or as long as said, and alive as long as the message.
        unsafe { bytes(message.key.cast(), message.key_len) }
    }

    /// Its value.
    pub fn value(&self) -> Option<&[u8]> {
        let message = self.message();
        // SAFETY: null or as long as said, and alive as long as the message.
        unsafe { bytes(message.payload.cast(), message.len) }
    }

    /// A copy of its headers, if it has any.
    pub fn headers(&self) -> Option<OwnedHeaders> {
        let mut headers = std::ptr::null_mut();
        // SAFETY: the message is alive, and the pointer may be written to; headers live as long as their message.
        unsafe {
            (sys::rd_kafka_message_headers(self.message.as_ptr(), &mut headers) == NO_ERROR)
                .then(|| copied_headers(headers, sys::rd_kafka_header_cnt(headers)))
        }
    }
}
