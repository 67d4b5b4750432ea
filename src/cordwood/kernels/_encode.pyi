from cordwood.kernels.reference import encode_columns as encode_columns
from cordwood.kernels.reference import encode_rows as encode_rows
from cordwood.kernels.reference import murmur2 as murmur2
from cordwood.kernels.reference import partition_keys as partition_keys
