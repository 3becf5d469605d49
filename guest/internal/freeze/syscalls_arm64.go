package freeze

const sysSyncFS = 267
