/* SPDX-License-Identifier: MIT */
/*
 * Packed samples: what goes into the log for each interval, and back.
 *
 * A chunk holds consecutive samples of one target. Each sample is a small head (seq step, dt,
 * cpu_us, flags) and one record for each CPU that was active or whose gauges moved; nothing is
 * written for idle CPUs. A record is: index step, a presence bitmap over the fields in the order
 * of counters.def, then a varint for each present field (counters: the value; gauges: zigzag
 * difference to the last value in this chunk). Steady load costs 20 to 40 bytes a record.
 *
 * The coding is exact: decode(encode(sample)) gives the same struct, so that a policy that is
 * replayed over decoded samples sees what the daemon's policy saw. The first sample of a chunk
 * carries every gauge that is not zero, so that each chunk can be decoded by itself.
 *
 * The decoder trusts nothing: any bytes give 0, -EBADMSG, or a valid sample.
 */
#ifndef PCPTUNE_LIB_CODEC_H
#define PCPTUNE_LIB_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <pcptune/policy.h>

struct pcptune_encoder;
struct pcptune_decoder;

/* n_cpus: entries of a sample (zones x slots). -ENOMEM. Free with encoder_free(). */
int encoder_new(uint32_t n_cpus, struct pcptune_encoder **ret);
void encoder_free(struct pcptune_encoder *enc);

/* Adds one sample to the open chunk (opens one if needed). -ENOMEM leaves the chunk as it was. */
int encoder_add(struct pcptune_encoder *enc, const struct pcptune_sample *sample);

/*
 * Plain totals of the open chunk, kept while encoding, so that the log has columns to query.
 * lock_* leave the agent's path out; held_pages is the sum of count at the last sample.
 */
struct chunk_totals {
	uint64_t seq_first, seq_last;
	uint32_t n_samples;
	uint32_t n_records; /* (sample, active CPU) pairs */
	uint64_t time_us; /* end of the last sample, CLOCK_BOOTTIME */
	uint64_t dt_us;	  /* of all samples together */
	uint64_t cpu_us;
	uint64_t alloc_pages, free_pages, alloc_zone, free_zone;
	uint64_t refills, drains, free_high;
	uint64_t lock_taken, lock_contended, lock_wait_ns;
	uint64_t held_pages, held_peak;
};

/*
 * The open chunk, owned by the encoder until the next call; *ret_len 0: nothing open. The chunk
 * stays open.
 */
void encoder_peek(const struct pcptune_encoder *enc, const uint8_t **ret_data, size_t *ret_len,
		  struct chunk_totals *ret_totals);
/* Closes the open chunk: the next sample begins a new one. */
void encoder_reset(struct pcptune_encoder *enc);

/*
 * Reads samples back. The sample of decoder_next() and its arrays are owned by the decoder and
 * valid until the next call. Returns 1: a sample, 0: end of the chunk, -EBADMSG: damaged.
 * Deltas of CPUs without a record are 0; their gauges and count are the last known in the chunk.
 */
int decoder_new(uint32_t n_zones, uint32_t n_cpus_per_zone, struct pcptune_decoder **ret);
void decoder_free(struct pcptune_decoder *dec);
void decoder_begin(struct pcptune_decoder *dec, const uint8_t *data, size_t len);
int decoder_next(struct pcptune_decoder *dec, const struct pcptune_sample **ret);

#endif
