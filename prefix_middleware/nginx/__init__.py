"""The nginx side: configuration rendered from the same Settings that the middleware reads."""
