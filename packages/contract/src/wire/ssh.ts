/**
 * SSH to a sandbox, beside its toolbox. `GET {toolbox_proxy_url}/ssh/host-keys` needs no credential and gives this.
 * `{toolbox_proxy_url}/{vm_id}/ssh` is a WebSocket whose binary messages are the bytes of an SSH connection that needs
 * no further credential. Keep imports cheap: the CLI loads this file.
 */

/** Where the SSH gateway of a region is, and the host keys that it shows. */
export interface SshHostKeys {
  host: string;
  port: number;
  /** As in `known_hosts` after the host: `ssh-ed25519 AAAA…`. */
  host_keys: readonly string[];
}

/** Path below `toolbox_proxy_url`. */
export const SSH_HOST_KEYS_PATH = '/ssh/host-keys';
/** Path below the toolbox URL of a sandbox. */
export const SSH_WEBSOCKET_PATH = '/ssh';
