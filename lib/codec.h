/* SPDX-License-Identifier: MIT */
/*
 * Packed samples: what goes into the log for each interval, and back.
 *
 * A chunk holds consecutive samples of one target. Each sample is a small head (seq step, dt,
 * cpu_us, flags) and one record for each CPU that was active or whose gauges or flags moved;
 * nothing is written for the others. A record is: index step, a presence bitmap over flags, count,
 * gauges and counters in the order of counters.def, then a varint for each present field, less
 * what can be predicted. Steady load costs about 30 bytes a record, all included (40 when a single
 * CPU has to carry the heads). The format itself is in the comment of lib/codec.c.
 *
 * The coding is exact: decode(encode(sample)) gives the same struct, so that a policy that is
 * replayed over decoded samples sees what the daemon's policy saw. What a sample must keep to for
 * that: the deltas of a CPU without PCPTUNE_CPU_ACTIVE are 0, and `active` lists the ACTIVE ones.
 * Each chunk can be decoded by itself: its first sample carries every gauge. A chunk stays
 * readable when counters.def grows: fields that it does not have are read as their prediction (0,
 * or the field that they follow), fields that the reader does not have are skipped.
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

/*
 * n_cpus: entries of a sample (zones x slots). -ENOMEM. Free with encoder_free(). An encoder, as a
 * decoder, is used by one thread at a time.
 */
int encoder_new(uint32_t n_cpus, struct pcptune_encoder **ret);
void encoder_free(struct pcptune_encoder *enc);

/*
 * Adds one sample to the open chunk (opens one if needed). -ENOMEM, and -EINVAL for a sample of
 * another number of CPUs or of smaller entries, leave the chunk as it was.
 */
int encoder_add(struct pcptune_encoder *enc, const struct pcptune_sample *sample);

/*
 * Plain totals of the open chunk, kept while encoding, so that the log has columns to query.
 * lock_* leave the agent's path out; held_pages is the sum of count at the last sample.
 */
struct chunk_totals {
	uint64_t seq_first, seq_last;
	uint32_t n_samples;
	uint32_t n_records; /* (sample, active CPU) pairs */
	uint64_t time_us;   /* end of the last sample, CLOCK_BOOTTIME */
	uint64_t dt_us;	    /* of all samples together */
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
 * Damage is for good until the next decoder_begin(). data must stay until the last decoder_next().
 * decoder_new(): -ENOMEM, -EINVAL for more than PCPTUNE_MAX_ZONES or PCPTUNE_MAX_CPUS.
 */
int decoder_new(uint32_t n_zones, uint32_t n_cpus_per_zone, struct pcptune_decoder **ret);
void decoder_free(struct pcptune_decoder *dec);
void decoder_begin(struct pcptune_decoder *dec, const uint8_t *data, size_t len);
int decoder_next(struct pcptune_decoder *dec, const struct pcptune_sample **ret);

#endif
