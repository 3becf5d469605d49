/** Names in the certificates of a deployment's own processes. `.internal` is reserved for private use, and is in no public DNS. */
import { isUuid } from '@releap/contract/ids';

export const HOST_DOMAIN = 'releap.internal';
/** What the internal listener of the control plane shows, on each of its servers. */
export const CONTROL_NAME = `control.${HOST_DOMAIN}`;
const ROLES = ['runner', 'gateway', 'control'] as const;
export type HostRole = (typeof ROLES)[number];

/** Whom a certificate names. */
export interface HostName {
  role: HostRole;
  /** UUID. */
  id: string;
}

export const hostName = ({ role, id }: HostName): string => `${id}.${role}.${HOST_DOMAIN}`;

/**
 * Reads the name in a certificate that was verified.
 * @param subjectAltName as Node shows it
 * @returns undefined when it has another name, or several
 */
export function parseHostName(subjectAltName: string | undefined): HostName | undefined {
  const [, id = '', name = ''] =
    /^DNS:([0-9a-f-]+)\.([a-z]+)\.releap\.internal$/.exec(subjectAltName ?? '') ?? [];
  const role = ROLES.find((one) => one === name);
  return role !== undefined && isUuid(id) ? { role, id } : undefined;
}
