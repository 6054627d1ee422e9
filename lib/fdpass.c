/* SPDX-License-Identifier: MIT */
/*
 * See fdpass.h. The allocator has its own (allocator/segment.c), by system calls alone.
 */
#include "lib/fdpass.h"

#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

union control {
	struct cmsghdr header;
	char space[CMSG_SPACE(sizeof(int))];
};

ssize_t fdpass_send(int sock, const void *data, size_t n, int fd)
{
	union control control = {0};
	struct iovec part = {(void *)(uintptr_t)data, n};
	struct msghdr message = {
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control.space),
	};

	control.header.cmsg_len = CMSG_LEN(sizeof(int));
	control.header.cmsg_level = SOL_SOCKET;
	control.header.cmsg_type = SCM_RIGHTS;
	memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
	return sendmsg(sock, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

ssize_t fdpass_receive(int sock, void *data, size_t n, int *ret_fd)
{
	union control control = {0};
	struct iovec part = {data, n};
	struct msghdr message = {
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = &control,
		/* room for one, not for two in the padding */
		.msg_controllen = CMSG_LEN(sizeof(int)),
	};
	ssize_t got = recvmsg(sock, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);

	*ret_fd = -1;
	if (got >= 0 && CMSG_FIRSTHDR(&message) && control.header.cmsg_level == SOL_SOCKET &&
	    control.header.cmsg_type == SCM_RIGHTS &&
	    control.header.cmsg_len == CMSG_LEN(sizeof(int)))
		memcpy(ret_fd, CMSG_DATA(&control.header), sizeof(*ret_fd));
	return got;
}
