/* SPDX-License-Identifier: MIT */
/* Descriptors that the program may close behind our back. */
#ifndef PCPA_SEGMENT_H
#define PCPA_SEGMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pcpa_fd {
	int fd; /* -1: none */
	uint64_t dev, ino;
};

/* Moves fd to a high number and remembers what it is. Takes fd over, also when it fails. */
bool pcpa_fd_keep(struct pcpa_fd *f, int fd);
/* The number if it still is what it was, else -1 (and the number is forgotten, not closed). */
int pcpa_fd_use(struct pcpa_fd *f);
/* Closes it, if it still is ours. */
void pcpa_fd_drop(struct pcpa_fd *f);
/*
 * One message with the descriptor fd, which stays the caller's; waits for nothing. false: errno
 * says why.
 */
bool pcpa_fd_send(int to, const void *data, size_t size, int fd);
/* One message and the descriptor that came with it (-1: none). Its length, or -1 and errno. */
long pcpa_fd_receive(int from, void *data, size_t size, int *ret_fd);
/* A file in memory of full size, which can not shrink or grow; -1: there is none to be had. */
int pcpa_sealed_file(const char *name, size_t size);

#endif
