/* SPDX-License-Identifier: MIT */
/*
 * Descriptors over Unix sockets: one a message, close-on-exec.
 *
 * Neither waits, and neither raises SIGPIPE. Any thread.
 */
#ifndef PCPTUNE_LIB_FDPASS_H
#define PCPTUNE_LIB_FDPASS_H

#include <stddef.h>
#include <sys/types.h>

/* As send(); fd goes with the first byte, and stays the caller's. */
ssize_t fdpass_send(int sock, const void *data, size_t n, int fd);
/*
 * As recv(); *ret_fd: the descriptor that came along, the caller's; -1: none. More than one: none
 * of them is kept but the first.
 */
ssize_t fdpass_receive(int sock, void *data, size_t n, int *ret_fd);

#endif
