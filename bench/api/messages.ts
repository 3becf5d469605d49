/** What a server under load tells the process that has forked it. */
export interface ServerReady {
  /** Base URL. */
  url: string;
  /** Only of the control plane. */
  internalUrl?: string;
  apiKey?: string;
  projectId?: string;
}
