//! The calls of librdkafka that rust-rdkafka does not wrap, and the one folder of the crate with `unsafe`.
//!
//! `DescribeTopics`: a topic's id is the only proof that it is still the same topic, and the safe API does not return it. It
//! is a Metadata request underneath that never lets a broker create the topic, so every broker answers it; those before
//! Kafka 2.8 leave the id zero.
//!
//! A commit with an answer: rust-rdkafka 0.39 sends an asynchronous commit without naming a queue for its answer, and sets
//! no commit callback in librdkafka's configuration, so `commit_callback` is never called for it. Without the answer no one
//! knows what is committed.
//!
//! A queue for records alone (`record_queue.rs`), and a partition's own queue: pausing throws away what was fetched, and a partition
//! that is resumed waits up to a second. One whose queue is not polled stops when that is full, and continues as soon as it is polled
//! again. rust-rdkafka only lets the way into that queue be opened, not closed again.
//!
//! Where one partition is read, the leader epochs beside offsets, and the beginning of a partition that librdkafka knows.
//!
//! Headers whose names are not valid UTF-8: rust-rdkafka 0.39 panics at these, and any producer can write them.
//!
//! The partition that a producer's partitioner chooses for a key, without producing anything.
//!
//! More brokers for a client that has lost all of its own.
//!
//! A token for a client that is not polled, and what a client was told of where its tokens come from.
//!
//! A mock cluster's initial rebalance delay: tests and demo would wait three seconds for it, every time.
//!
//! What librdkafka hands out and the caller owns is held in [`Owned`]; everything else is borrowed from such a value and
//! copied before it goes.

#![allow(unsafe_code)]

mod record_queue;

use std::ffi::{CStr, CString, c_char};
use std::ptr::NonNull;
use std::time::Duration;

use rdkafka::TopicPartitionList;
use rdkafka::client::{Client, ClientContext, OAuthToken};
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::{BorrowedHeaders, Header, Headers, OwnedHeaders};
use rdkafka::types::RDKafkaErrorCode;
use rdkafka_sys as sys;

pub use self::record_queue::{Fetched, FetchedRecord, RecordQueue};
use super::{TopicFactsError, TopicFactsFound};
use crate::support::config::Partitioner;

/// Extra timeout beyond the request's own, so that librdkafka times out first.
const GRACE: Duration = Duration::from_secs(1);
/// The longest request timeout that librdkafka takes.
const MAX_TIMEOUT_MS: i32 = 3_600_000;
/// The setting with the configured brokers.
const BOOTSTRAP: &CStr = c"bootstrap.servers";
/// The setting that says where tokens come from.
const LOGIN_SOURCE: &CStr = c"sasl.oauthbearer.config";
const NO_ERROR: sys::rd_kafka_resp_err_t = sys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR;
/// Room for librdkafka's text about a refused option.
const ERROR_TEXT_BYTES: usize = 256;

/// Commits `offsets` without waiting. The result arrives in the consumer's queue; `poll` passes it to the context's
/// `commit_callback`.
pub(super) fn commit_with_answer<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    offsets: &TopicPartitionList,
) -> KafkaResult<()> {
    let rk = consumer.client().native_ptr();
    let queue = consumer_queue(consumer).ok_or(KafkaError::ConsumerCommit(RDKafkaErrorCode::UnknownGroup))?;
    // SAFETY: all are alive; librdkafka copies the list and counts its own reference to the queue.
    let code =
        unsafe { sys::rd_kafka_commit_queue(rk, offsets.ptr(), queue.as_ptr(), None, std::ptr::null_mut()) };
    if code == NO_ERROR { Ok(()) } else { Err(KafkaError::ConsumerCommit(code.into())) }
}

/// How many events wait for the consumer's poll.
pub(super) fn waiting_events<C: ConsumerContext>(consumer: &BaseConsumer<C>) -> usize {
    // SAFETY: the queue is alive.
    consumer_queue(consumer).map_or(0, |queue| unsafe { sys::rd_kafka_queue_length(queue.as_ptr()) })
}

/// The queue that is polled; `None` for a consumer that is in no group, or closing.
fn consumer_queue<C: ConsumerContext>(consumer: &BaseConsumer<C>) -> Option<Owned<sys::rd_kafka_queue_t>> {
    let rk = consumer.client().native_ptr();
    // SAFETY: `rk` is alive while `consumer` is borrowed; the reference is owned here, and this is its function.
    unsafe { Owned::new(sys::rd_kafka_queue_get_consumer(rk), sys::rd_kafka_queue_destroy) }
}

/// Sets the offsets of a list to where the application stands, and leader epochs too. `None`: librdkafka does not return it.
///
/// rust-rdkafka returns it for the whole assignment only.
pub(super) fn positions<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    partitions: &TopicPartitionList,
) -> Option<()> {
    // SAFETY: both are alive while they are borrowed; librdkafka only writes to the elements of the list.
    let code = unsafe { sys::rd_kafka_position(consumer.client().native_ptr(), partitions.ptr()) };
    (code == NO_ERROR).then_some(())
}

/// The element of a list; `None` if it has none for the partition.
fn element(
    list: &TopicPartitionList,
    topic: &str,
    partition: i32,
) -> Option<NonNull<sys::rd_kafka_topic_partition_t>> {
    let name = CString::new(topic).ok()?;
    // SAFETY: the list is alive while it is borrowed, and the name is terminated; the element belongs to the list.
    NonNull::new(unsafe { sys::rd_kafka_topic_partition_list_find(list.ptr(), name.as_ptr(), partition) })
}

/// The leader epoch of an offset in a list; negative if unset.
pub(super) fn leader_epoch(list: &TopicPartitionList, topic: &str, partition: i32) -> i32 {
    let Some(element) = element(list, topic, partition) else { return -1 };
    // SAFETY: the element is alive as long as the list, which is borrowed.
    unsafe { sys::rd_kafka_topic_partition_get_leader_epoch(element.as_ptr()) }
}

/// Sets the leader epoch beside an offset of a list.
pub(super) fn set_leader_epoch(list: &TopicPartitionList, topic: &str, partition: i32, epoch: i32) {
    if let Some(element) = element(list, topic, partition) {
        // SAFETY: the element lives as long as the list, which is borrowed exclusively.
        unsafe { sys::rd_kafka_topic_partition_set_leader_epoch(element.as_ptr(), epoch) };
    }
}

/// The first offset of a partition that librdkafka knows, and the end; negative if unknown. Sends no request.
pub(super) fn known_ends<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    topic: &str,
    partition: i32,
) -> (i64, i64) {
    let (mut low, mut high) = (-1, -1);
    let Ok(name) = CString::new(topic) else { return (low, high) };
    // SAFETY: the client is alive while `consumer` is borrowed, the name is terminated, and both numbers may be written to.
    unsafe {
        sys::rd_kafka_get_watermark_offsets(
            consumer.client().native_ptr(),
            name.as_ptr(),
            partition,
            &mut low,
            &mut high,
        );
    }
    (low, high)
}

/// A copy of headers, in which a name that is not valid UTF-8 has replacement characters.
pub(super) fn owned_headers(headers: &BorrowedHeaders) -> OwnedHeaders {
    // What rust-rdkafka gives as a reference is librdkafka's pointer itself; it has no function for it.
    // SAFETY: the headers are alive while they are borrowed.
    unsafe { copied_headers(std::ptr::from_ref(headers).cast(), headers.count()) }
}

/// A copy of the first `count` headers.
///
/// # Safety
/// The headers are alive.
unsafe fn copied_headers(headers: *const sys::rd_kafka_headers_t, count: usize) -> OwnedHeaders {
    let mut owned = OwnedHeaders::new_with_capacity(count);
    for number in 0..count {
        let (mut name, mut value, mut size) = (std::ptr::null(), std::ptr::null(), 0);
        // SAFETY: the headers are alive, and all three may be written to.
        let code = unsafe { sys::rd_kafka_header_get_all(headers, number, &mut name, &mut value, &mut size) };
        if code != NO_ERROR {
            break;
        }
        // SAFETY: librdkafka terminates the name, the value is null or as long as said, and both live as long as the headers.
        let (name, value) = unsafe { (CStr::from_ptr(name).to_string_lossy(), bytes(value.cast(), size)) };
        owned = owned.insert(Header { key: &name, value });
    }
    owned
}

/// What librdkafka points to; `None` for null.
///
/// # Safety
/// The pointer is null, or as many bytes live there for as long as the result.
unsafe fn bytes<'a>(pointer: *const u8, size: usize) -> Option<&'a [u8]> {
    // SAFETY: by this function's contract.
    (!pointer.is_null()).then(|| unsafe { std::slice::from_raw_parts(pointer, size) })
}

/// Keeps what is fetched of a partition in the partition's own queue, where librdkafka's bounds hold it. `false`: librdkafka does
/// not know the partition.
///
/// From the first call on, librdkafka leaves the partition to its caller, also after later assignments.
pub(super) fn hold_back<C: ConsumerContext>(consumer: &BaseConsumer<C>, topic: &str, partition: i32) -> bool {
    forward(consumer, topic, partition, None)
}

/// Lets what is fetched of a partition go to `target`, or stay in the partition's own queue.
fn forward<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    topic: &str,
    partition: i32,
    target: Option<&Owned<sys::rd_kafka_queue_t>>,
) -> bool {
    let Ok(name) = CString::new(topic) else { return false };
    // SAFETY: the client is alive while `consumer` is borrowed, and the name is terminated; the reference is owned here, and this
    // is its function.
    let own = unsafe {
        let own = sys::rd_kafka_queue_get_partition(consumer.client().native_ptr(), name.as_ptr(), partition);
        Owned::new(own, sys::rd_kafka_queue_destroy)
    };
    let Some(own) = own else { return false };
    let target = target.map_or(std::ptr::null_mut(), Owned::as_ptr);
    // SAFETY: both are alive, or the target is null, which stands for no queue; librdkafka counts its own reference to it.
    unsafe { sys::rd_kafka_queue_forward(own.as_ptr(), target) };
    true
}

/// Gives a client its configured brokers once more. `false`: none are configured.
pub(super) fn add_configured_brokers<C: ClientContext>(client: &Client<C>) -> bool {
    let Some(brokers) = setting(client, BOOTSTRAP) else { return false };
    // SAFETY: the client is alive and the list is terminated; librdkafka copies it.
    unsafe { sys::rd_kafka_brokers_add(client.native_ptr(), brokers.as_ptr()) > 0 }
}

/// What a client with a source of tokens was told of it; `None` for other clients.
pub(super) fn login_source<C: ClientContext>(client: &Client<C>) -> Option<String> {
    setting(client, LOGIN_SOURCE)?.into_string().ok().filter(|source| !source.is_empty())
}

/// Gives a client its next token. `Err`: why librdkafka does not take it.
pub(super) fn set_token<C: ClientContext>(client: &Client<C>, token: &OAuthToken) -> Result<(), String> {
    let text = |text: &str| CString::new(text).map_err(|_| "the token holds a zero byte".to_owned());
    let (value, principal) = (text(&token.token)?, text(&token.principal_name)?);
    let mut reason: [c_char; ERROR_TEXT_BYTES] = [0; ERROR_TEXT_BYTES];
    // SAFETY: the client is alive, both texts are terminated and copied, there are no extensions, and the buffer is as long as said.
    let code = unsafe {
        sys::rd_kafka_oauthbearer_set_token(
            client.native_ptr(),
            value.as_ptr(),
            token.lifetime_ms,
            principal.as_ptr(),
            std::ptr::null_mut(),
            0,
            reason.as_mut_ptr(),
            reason.len(),
        )
    };
    if code == NO_ERROR {
        return Ok(());
    }
    // SAFETY: librdkafka has terminated what it wrote, and the buffer began as zeros.
    Err(unsafe { CStr::from_ptr(reason.as_ptr()) }.to_string_lossy().into_owned())
}

/// A setting of a client. `None`: it is not set, or librdkafka does not know it.
fn setting<C: ClientContext>(client: &Client<C>, name: &CStr) -> Option<CString> {
    let mut bytes = 0;
    // SAFETY: the client is alive, and its configuration as long as it is; without a buffer only the length is written.
    let known = unsafe {
        let conf = sys::rd_kafka_conf(client.native_ptr());
        sys::rd_kafka_conf_get(conf, name.as_ptr(), std::ptr::null_mut(), &mut bytes)
    };
    if known != sys::rd_kafka_conf_res_t::RD_KAFKA_CONF_OK {
        return None;
    }
    let mut value: Vec<u8> = vec![0; bytes + 1];
    let mut space = value.len();
    // SAFETY: as above; the buffer is as long as said, and librdkafka terminates what it writes there.
    unsafe {
        let conf = sys::rd_kafka_conf(client.native_ptr());
        sys::rd_kafka_conf_get(conf, name.as_ptr(), value.as_mut_ptr().cast(), &mut space);
    }
    Some(CStr::from_bytes_until_nul(&value).ok()?.to_owned())
}

/// Sets `group.initial.rebalance.delay.ms` of the mock cluster that lives in a client, if one does.
pub(super) fn set_initial_rebalance_delay<C: ClientContext>(client: &Client<C>, delay: Duration) {
    let delay_ms = i32::try_from(delay.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: the client is alive; the cluster is null, or its own and alive as long as it is.
    let cluster = unsafe { sys::rd_kafka_handle_mock_cluster(client.native_ptr()) };
    if !cluster.is_null() {
        // SAFETY: the cluster is alive; librdkafka hands the change to the cluster's own thread.
        unsafe { sys::rd_kafka_mock_group_initial_rebalance_delay_ms(cluster, delay_ms) };
    }
}

/// The partition that librdkafka's partitioner chooses for `key` of `partitions`; `None` without partitions or for an unknown
/// partitioner.
pub(super) fn partition_of(partitioner: Partitioner, key: &[u8], partitions: i32) -> Option<i32> {
    let choose = match partitioner {
        Partitioner::Murmur2 => sys::rd_kafka_msg_partitioner_murmur2,
        Partitioner::Crc32 => sys::rd_kafka_msg_partitioner_consistent,
        Partitioner::Fnv1a => sys::rd_kafka_msg_partitioner_fnv1a,
        Partitioner::Custom => return None,
    };
    let null = std::ptr::null_mut();
    // SAFETY: the key is as long as said and alive, and there is a partition. None of the three looks at the topic or at the
    // opaque pointers.
    (partitions > 0)
        .then(|| unsafe { choose(std::ptr::null(), key.as_ptr().cast(), key.len(), partitions, null, null) })
}

/// Describes `topic`, asking `broker`; answers or fails after `timeout` and a second at the latest.
///
/// Left to itself librdkafka would ask the controller, and wait in vain for one where there is none.
pub(super) fn describe_topic<C: ClientContext>(
    client: &Client<C>,
    broker: i32,
    topic: &str,
    timeout: Duration,
) -> Result<TopicFactsFound, TopicFactsError> {
    let name =
        CString::new(topic).map_err(|_| TopicFactsError::other("a topic's name has no NUL character"))?;
    let rk = client.native_ptr();
    let timeout_ms = i32::try_from(timeout.as_millis()).unwrap_or(MAX_TIMEOUT_MS).clamp(1, MAX_TIMEOUT_MS);

    // SAFETY: `rk` is alive while `client` is borrowed; what is made is owned here, and this is its function.
    let options = unsafe {
        let for_api = sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS;
        Owned::new(sys::rd_kafka_AdminOptions_new(rk, for_api), sys::rd_kafka_AdminOptions_destroy)
    };
    let options = options.ok_or_else(not_set_up)?;
    let mut error_text: [c_char; ERROR_TEXT_BYTES] = [0; ERROR_TEXT_BYTES];
    let (buffer, bytes) = (error_text.as_mut_ptr(), error_text.len());
    // SAFETY: `options` is alive, and the buffer is as long as said; librdkafka writes a terminated text into it.
    let settings = unsafe {
        [
            sys::rd_kafka_AdminOptions_set_request_timeout(options.as_ptr(), timeout_ms, buffer, bytes),
            sys::rd_kafka_AdminOptions_set_broker(options.as_ptr(), broker, buffer, bytes),
        ]
    };
    if let Some(&refused) = settings.iter().find(|&&code| code != NO_ERROR) {
        // SAFETY: the buffer is terminated: it began as zeros, and librdkafka terminates what it writes.
        return Err(TopicFactsError::from_code(refused.into(), &unsafe { text(error_text.as_ptr()) }));
    }

    let mut names = [name.as_ptr()];
    // SAFETY: `names` holds one terminated string, which librdkafka copies; the copy is owned here.
    let topics = unsafe {
        let topics = sys::rd_kafka_TopicCollection_of_topic_names(names.as_mut_ptr(), names.len());
        Owned::new(topics, sys::rd_kafka_TopicCollection_destroy)
    };
    let topics = topics.ok_or_else(not_set_up)?;
    // SAFETY: `rk` is alive while `client` is borrowed; the queue is owned here.
    let queue = unsafe { Owned::new(sys::rd_kafka_queue_new(rk), sys::rd_kafka_queue_destroy) };
    let queue = queue.ok_or_else(not_set_up)?;

    // SAFETY: all four are alive; librdkafka copies topics and options, and counts its own reference to the queue, so that
    // an answer that comes after this function returned is dropped with the queue.
    unsafe { sys::rd_kafka_DescribeTopics(rk, topics.as_ptr(), options.as_ptr(), queue.as_ptr()) };
    let wait_ms = timeout_ms.saturating_add(i32::try_from(GRACE.as_millis()).unwrap_or(i32::MAX));
    // SAFETY: the queue is alive; an event that it gives out is owned here.
    let event =
        unsafe { Owned::new(sys::rd_kafka_queue_poll(queue.as_ptr(), wait_ms), sys::rd_kafka_event_destroy) };
    let event =
        event.ok_or_else(|| TopicFactsError::from_code(RDKafkaErrorCode::OperationTimedOut, "no answer"))?;
    read_answer(&event)
}

/// Copies the needed fields out of the response.
fn read_answer(event: &Owned<sys::rd_kafka_event_t>) -> Result<TopicFactsFound, TopicFactsError> {
    // SAFETY: the event is alive; its text belongs to it, or is static.
    let (code, reason) = unsafe {
        (sys::rd_kafka_event_error(event.as_ptr()), text(sys::rd_kafka_event_error_string(event.as_ptr())))
    };
    if code != NO_ERROR {
        return Err(TopicFactsError::from_code(code.into(), &reason));
    }
    // SAFETY: the event is alive; the result is a view of it, or null for an event of another type.
    let result = unsafe { sys::rd_kafka_event_DescribeTopics_result(event.as_ptr()) };
    if result.is_null() {
        return Err(TopicFactsError::other("librdkafka answered with an event of another type"));
    }
    let mut count = 0;
    // SAFETY: the result is not null and lives as long as the event; `count` is set to the length of the array.
    let described = unsafe { sys::rd_kafka_DescribeTopics_result_topics(result, &mut count) };
    if count == 0 || described.is_null() {
        return Err(TopicFactsError::Missing);
    }
    // SAFETY: the array has `count` elements, at least one; a slot without an answer is null.
    let topic = unsafe { *described };
    if topic.is_null() {
        return Err(TopicFactsError::Missing);
    }

    // SAFETY: the topic lives as long as the event, and so does its error, which is null where there is none.
    let error = unsafe { sys::rd_kafka_TopicDescription_error(topic) };
    if !error.is_null() {
        // SAFETY: `error` is not null and alive; its text belongs to it.
        let (code, reason) =
            unsafe { (sys::rd_kafka_error_code(error), text(sys::rd_kafka_error_string(error))) };
        if code != NO_ERROR {
            return Err(TopicFactsError::from_code(code.into(), &reason));
        }
    }
    let mut partitions = 0;
    // SAFETY: the topic is alive; only the count is used.
    unsafe { sys::rd_kafka_TopicDescription_partitions(topic, &mut partitions) };
    let partitions = i32::try_from(partitions)
        .map_err(|_| TopicFactsError::other("more partitions than Kafka can number"))?;
    // SAFETY: the topic is alive, and so is its id.
    let topic_id = unsafe { read_topic_id(topic) };
    Ok(TopicFactsFound { topic_id, partitions })
}

/// The topic's id in the form that Kafka's own tools print; `None` where the broker told none.
///
/// # Safety
/// `topic` is a live description.
unsafe fn read_topic_id(topic: *const sys::rd_kafka_TopicDescription_t) -> Option<String> {
    // SAFETY: by this function's contract; id and text live as long as the description.
    let (id, is_zero) = unsafe {
        let id = sys::rd_kafka_TopicDescription_topic_id(topic);
        if id.is_null() {
            return None;
        }
        let bits =
            (sys::rd_kafka_Uuid_most_significant_bits(id), sys::rd_kafka_Uuid_least_significant_bits(id));
        (text(sys::rd_kafka_Uuid_base64str(id)), bits == (0, 0))
    };
    // Kafka's tools print the URL-safe alphabet, librdkafka the other one.
    (!is_zero && !id.is_empty()).then(|| id.replace('+', "-").replace('/', "_"))
}

/// A copy of a C text; empty for null.
///
/// # Safety
/// `text` is null or a terminated string that lives through the call.
unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: not null, and terminated by this function's contract.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

fn not_set_up() -> TopicFactsError {
    TopicFactsError::other("librdkafka could not set up the request")
}

/// Something of librdkafka's that has to be given back with its own function.
struct Owned<T> {
    pointer: NonNull<T>,
    destroy: unsafe extern "C" fn(*mut T),
}

impl<T> Owned<T> {
    /// Takes over `pointer`; `None` for null.
    ///
    /// # Safety
    /// `pointer` is null, or alive and owned by the caller, and `destroy` is the function that frees its kind.
    unsafe fn new(pointer: *mut T, destroy: unsafe extern "C" fn(*mut T)) -> Option<Self> {
        Some(Self { pointer: NonNull::new(pointer)?, destroy })
    }

    fn as_ptr(&self) -> *mut T {
        self.pointer.as_ptr()
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: alive and owned by this value alone since `new`, by whose contract the function is the right one.
        unsafe { (self.destroy)(self.pointer.as_ptr()) }
    }
}

/// Produces a document with a header whose name any bytes may be; rust-rdkafka only takes UTF-8.
#[cfg(test)]
pub(crate) fn produce_with_header<C: ClientContext>(
    client: &Client<C>,
    topic: &CStr,
    key: &CStr,
    document: &CStr,
    header: (&CStr, &CStr),
) {
    use sys::rd_kafka_vtype_t as vtype;

    let (name, value) = header;
    let bytes = |text: &CStr| text.to_bytes().len();
    // SAFETY: the client is alive, each argument is of the type that its tag demands, and librdkafka copies all texts.
    let code = unsafe {
        sys::rd_kafka_producev(
            client.native_ptr(),
            vtype::RD_KAFKA_VTYPE_TOPIC,
            topic.as_ptr(),
            vtype::RD_KAFKA_VTYPE_PARTITION,
            0_i32,
            vtype::RD_KAFKA_VTYPE_MSGFLAGS,
            sys::RD_KAFKA_MSG_F_COPY,
            vtype::RD_KAFKA_VTYPE_KEY,
            key.as_ptr(),
            bytes(key),
            vtype::RD_KAFKA_VTYPE_VALUE,
            document.as_ptr(),
            bytes(document),
            vtype::RD_KAFKA_VTYPE_HEADER,
            name.as_ptr(),
            value.as_ptr(),
            bytes(value),
            vtype::RD_KAFKA_VTYPE_END,
        )
    };
    assert_eq!(code, NO_ERROR);
}
