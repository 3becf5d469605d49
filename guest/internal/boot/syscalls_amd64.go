package boot

const sysFinitModule = 313
