package boot

const sysFinitModule = 273
