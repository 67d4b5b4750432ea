"""Every exception the library raises on purpose.

::

    CordwoodError
    ├── ConfigError               a setting has an invalid name or value
    │   ├── UnknownSetting            no such name; suggests the nearest one
    │   └── InvalidSetting            the name exists, the value is invalid
    ├── FrameError                wrong bytes, with position, expected and found value
    │   ├── TruncatedFrame            the bytes end before the frame does
    │   ├── ChecksumMismatch          the stored checksum is not that of the bytes
    │   ├── InvalidBatch              a batch that contradicts its own header or its format
    │   │   └── OnlyZeros                 zeros in place of a frame: space that was never written
    │   ├── UnsupportedFrame          an unknown magic, attribute or compression
    │   ├── FrameTooLarge             a batch or its decompressed records exceed the configured limit
    │   └── WrongStream               a record of another tenant or stream
    ├── ProtocolError             a peer violated the Kafka protocol, or uses an unsupported part
    │   ├── MalformedMessage          bytes that are not a message; says where and why
    │   └── UnsupportedVersion        an unsupported API or version
    ├── RecordRefused             a record that the format or topic cannot store; nothing was stored
    │   ├── StreamTooLong             a stream exceeded its limit; nothing was stored
    │   ├── TransactionsUnsupported   a transactional record for a topic whose format has no transactions
    │   └── RecordsRejected           records that the topic does not accept; says which, and why
    │       └── TimestampsRejected        the same, some because of their timestamps
    ├── OffsetOutOfRange          no such offset to read or truncate at; carries both bounds
    ├── LeaderEpochFenced         a client knows an older leader epoch of a partition than the current one
    ├── LeaderEpochUnknown        a client knows a newer leader epoch
    ├── RecordsLost               records that a query had to read are gone; says which
    ├── JobFailed                 an exception in a task of a Spark job
    ├── SignedFor                 a truncation below a signed checkpoint
    ├── EvidenceRefused           a note, checkpoint or proof that is invalid or does not match
    ├── EvidenceMissing           nothing to prove, or no chain, leaf or checkpoint to prove it with
    ├── SigningUnavailable        the signature library is not installed
    ├── UnexpectedOffset          an append that required another offset
    ├── OutOfSequence             a batch of an idempotent producer that is not its next one
    ├── ProducerFenced            a producer whose id or transactional id another one took over
    ├── TransactionError          a request that does not fit the state of its transaction; nothing was done
    │   ├── TransactionStateInvalid   a call that is not allowed in the current state of the transaction
    │   ├── ConcurrentTransactions    the transaction before is being ended; the call may be retried
    │   ├── ProducerMappingInvalid    a transactional id has another producer id, or none
    │   ├── TransactionTimeoutInvalid a transaction timeout outside the allowed range
    │   ├── TransactionalIdUnknown    no such transactional id
    │   └── UnstableOffset            an offset of a transaction that has not ended yet; may be retried
    ├── TopicMismatch             an existing topic differs from the caller's description
    ├── UnknownTopic              no such topic or partition
    ├── NotAllowed                a client that may not do this to a topic
    ├── TopicExists               a topic to create exists already
    ├── QuotaExceeded             an org would exceed its storage quota; nothing was stored
    ├── LogClosed                 a call after close, or in a forked child
    ├── WrongEventLoop            an awaited call from another event loop than that of the log
    ├── ListenFailed              an address to listen on is in use or not local
    ├── BucketError               a problem of object storage or of what is in it
    │   ├── StoreUnavailable          the store did not answer: a request may have taken effect, or may still
    │   ├── ObjectMissing             no object has this key
    │   ├── ObjectExists              an object has this key already; nothing was written
    │   ├── VersionChanged            the object was replaced meanwhile; nothing was written
    │   ├── BucketRefused             a store, or what is in it, that cannot be used
    │   ├── BucketDamaged             an object that is not what was written
    │   ├── OwnerFenced               another process took the log over
    │   └── LeaseExpired              the bucket was away for too long to acknowledge
    └── StorageError              a problem of the disk or of its content
        ├── DirectoryLocked           another process writes this data directory
        ├── DirectoryRefused          not a data directory, or one that must not be opened
        │   └── NotADataDirectory         nothing in it was written by Cordwood
        ├── MetadataDamaged           a metadata file is missing or damaged; never treated as empty
        ├── CorruptRange              acknowledged bytes that are wrong now; kept, and refused
        ├── DiskFull                  nothing was stored; works again once there is space
        ├── ResourcesExhausted        no file handles or memory left; works again once there are
        └── LogFailed                 a sync failed: the device's content is unknown, appends are refused

A torn tail is not here: it is an expected result of a crash and is reported, not raised.
"""

from cordwood.errors.bucket import (
    BucketDamaged,
    BucketError,
    BucketRefused,
    LeaseExpired,
    ObjectExists,
    ObjectMissing,
    OwnerFenced,
    StoreUnavailable,
    VersionChanged,
)
from cordwood.errors.general import (
    ChecksumMismatch,
    ConfigError,
    CordwoodError,
    CorruptRange,
    DirectoryLocked,
    DirectoryRefused,
    DiskFull,
    EvidenceMissing,
    EvidenceRefused,
    FrameError,
    FrameTooLarge,
    InvalidBatch,
    InvalidSetting,
    JobFailed,
    LeaderEpochFenced,
    LeaderEpochUnknown,
    ListenFailed,
    LogClosed,
    LogFailed,
    MalformedMessage,
    MetadataDamaged,
    NotADataDirectory,
    NotAllowed,
    OffsetOutOfRange,
    OnlyZeros,
    OutOfSequence,
    ProducerFenced,
    ProtocolError,
    QuotaExceeded,
    RecordRefused,
    RecordsLost,
    RecordsRejected,
    ResourcesExhausted,
    SignedFor,
    SigningUnavailable,
    StorageError,
    StreamTooLong,
    TimestampsRejected,
    TopicExists,
    TopicMismatch,
    TruncatedFrame,
    UnexpectedOffset,
    UnknownSetting,
    UnknownTopic,
    UnsupportedFrame,
    UnsupportedVersion,
    WrongEventLoop,
    WrongStream,
)
from cordwood.errors.transactions import (
    ConcurrentTransactions,
    ProducerMappingInvalid,
    TransactionalIdUnknown,
    TransactionError,
    TransactionStateInvalid,
    TransactionsUnsupported,
    TransactionTimeoutInvalid,
    UnstableOffset,
)

__all__ = [
    "BucketDamaged",
    "BucketError",
    "BucketRefused",
    "ChecksumMismatch",
    "ConcurrentTransactions",
    "ConfigError",
    "CordwoodError",
    "CorruptRange",
    "DirectoryLocked",
    "DirectoryRefused",
    "DiskFull",
    "EvidenceMissing",
    "EvidenceRefused",
    "FrameError",
    "FrameTooLarge",
    "InvalidBatch",
    "InvalidSetting",
    "JobFailed",
    "LeaderEpochFenced",
    "LeaderEpochUnknown",
    "LeaseExpired",
    "ListenFailed",
    "LogClosed",
    "LogFailed",
    "MalformedMessage",
    "MetadataDamaged",
    "NotADataDirectory",
    "NotAllowed",
    "ObjectExists",
    "ObjectMissing",
    "OffsetOutOfRange",
    "OnlyZeros",
    "OutOfSequence",
    "OwnerFenced",
    "ProducerFenced",
    "ProducerMappingInvalid",
    "ProtocolError",
    "QuotaExceeded",
    "RecordRefused",
    "RecordsLost",
    "RecordsRejected",
    "ResourcesExhausted",
    "SignedFor",
    "SigningUnavailable",
    "StorageError",
    "StoreUnavailable",
    "StreamTooLong",
    "TimestampsRejected",
    "TopicExists",
    "TopicMismatch",
    "TransactionError",
    "TransactionStateInvalid",
    "TransactionTimeoutInvalid",
    "TransactionalIdUnknown",
    "TransactionsUnsupported",
    "TruncatedFrame",
    "UnexpectedOffset",
    "UnknownSetting",
    "UnknownTopic",
    "UnstableOffset",
    "UnsupportedFrame",
    "UnsupportedVersion",
    "VersionChanged",
    "WrongEventLoop",
    "WrongStream",
]

for _name in __all__:
    # Tracebacks and Spark's messages name an exception by its public name, and pickles find it there.
    globals()[_name].__module__ = __name__
