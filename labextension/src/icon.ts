/** The picture of a card with its lanes. */

import { LabIcon } from '@jupyterlab/ui-components';

const SVG = `<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">
  <g class="jp-icon3" fill="#616161">
    <path d="M6 5h12a1 1 0 0 1 1 1v12a1 1 0 0 1-1 1H6a1 1 0 0 1-1-1V6a1 1 0 0 1 1-1zm1 2v10h10V7z"/>
    <path d="M9 9h6v1.5H9zM9 11.3h4v1.5H9zM9 13.6h5v1.5H9z"/>
    <path d="M8 2h1.5v2.5H8zM11.25 2h1.5v2.5h-1.5zM14.5 2H16v2.5h-1.5zM8 19.5h1.5V22H8zM11.25 19.5h1.5V22h-1.5zM14.5 19.5H16V22h-1.5z"/>
    <path d="M2 8h2.5v1.5H2zM2 11.25h2.5v1.5H2zM2 14.5h2.5V16H2zM19.5 8H22v1.5h-2.5zM19.5 11.25H22v1.5h-2.5zM19.5 14.5H22V16h-2.5z"/>
  </g>
</svg>`;

export const gpuIcon = new LabIcon({ name: '@jgpu/lab:gpu', svgstr: SVG });
