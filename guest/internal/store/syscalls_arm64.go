package store

const sysMemfdCreate = 279
