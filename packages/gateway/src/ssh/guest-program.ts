/** In every sandbox, from the system disk (guest/ssh): `sftp-server`, `login-shell` and `dial`. */
export const SSH_PROGRAM = '/usr/lib/releap/releap-ssh';
