/** How a container of the image is run, in our own form. */
export interface ImageConfig {
  entrypoint: string[];
  cmd: string[];
  env: Record<string, string>;
  /** `user[:group]`, names or numbers, as the image says it; empty means root. */
  user: string;
  /** Absolute; empty means `/`. */
  workingDir: string;
  exposedPorts: { port: number; proto: 'tcp' | 'udp' }[];
  /** e.g. `SIGTERM`; empty means the default. */
  stopSignal: string;
  /** It has a container engine, which its sandboxes keep running. */
  docker?: true;
}

/** Marks an image that was prepared for Docker; its value is `true`. */
export const DOCKER_LABEL = 'dev.releap.docker';
