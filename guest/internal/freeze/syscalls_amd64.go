package freeze

const sysSyncFS = 306
