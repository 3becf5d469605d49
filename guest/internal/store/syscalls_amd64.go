package store

const sysMemfdCreate = 319
