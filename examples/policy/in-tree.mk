# SPDX-License-Identifier: MIT
# In the source tree, what `make` there built will do where no pcptune is installed.
export PKG_CONFIG_PATH := $(PKG_CONFIG_PATH):$(CURDIR)/../../build/release/lib/pkgconfig
