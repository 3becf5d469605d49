export { certificateRequest } from './certificate-request.ts';
export { ControlAccess, type ControlTrust, OTHER_AUTHORITY } from './control-access.ts';
export {
  connectorOf,
  DataHosts,
  type DataHostsOptions,
  type HostAddress,
  type LocalRunner,
  type Peer,
  plainPeer,
  runnerOfHome,
} from './data-hosts.ts';
export {
  EXPIRY_METRIC,
  expirySeconds,
  HostCertificate,
  type HostIdentity,
  type IssuedCertificate,
} from './host-certificate.ts';
export {
  REVERSE_FIRST_BYTE,
  REVERSE_URL,
  reverseAddress,
  ReverseConnections,
  type ReverseOptions,
  reversePreface,
} from './reverse.ts';
export { CONTROL_NAME, HOST_DOMAIN, type HostName, hostName, parseHostName } from './names.ts';
