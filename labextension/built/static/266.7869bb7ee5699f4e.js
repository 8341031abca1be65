"use strict";(self.rspackChunk_jgpu_lab=self.rspackChunk_jgpu_lab||[]).push([[266],{33(e,r,o){var t=o(601),a=o.n(t),p=o(314),n=(o.n(p))()(a());n.push([e.id,`.jp-CodeCell[data-jgpu]::after {
  content: attr(data-jgpu-text);
  display: block;
  margin-left: calc(var(--jp-cell-prompt-width) + var(--jp-cell-collapser-width));
  padding: 2px 0;
  overflow: hidden;
  color: var(--jp-ui-font-color2);
  font-family: var(--jp-ui-font-family);
  font-size: var(--jp-ui-font-size1);
  text-overflow: ellipsis;
  white-space: nowrap;
}

.jp-CodeCell[data-jgpu='waiting']::after {
  padding-left: 8px;
  color: var(--jp-ui-font-color1);
  background: var(--jp-layout-color2);
  border-left: 3px solid var(--jp-warn-color1);
}

.jp-CodeCell[data-jgpu='waiting'] .jp-InputPrompt {
  color: var(--jp-warn-color0);
  opacity: 1;
}

.jp-CodeCell[data-jgpu='waiting'] .jp-InputArea-editor {
  border-style: dashed;
}

/* Here JupyterLab has the prompt above the cell. */
@media only screen and (width <= 760px) {
  .jp-CodeCell[data-jgpu]::after {
    margin-left: calc(var(--jp-code-padding) + var(--jp-cell-collapser-width));
  }
}
`,""]),o.d(r,{},{A:n})},646(e,r,o){var t=o(601),a=o.n(t),p=o(314),n=o.n(p),i=o(842),u=o(33),l=o(724),d=n()(a());d.i(i.A),d.i(u.A),d.i(l.A),d.push([e.id,`
`,""]),o.d(r,{},{A:d})},724(e,r,o){var t=o(601),a=o.n(t),p=o(314),n=(o.n(p))()(a());n.push([e.id,`.jgpu-Panel {
  color: var(--jp-ui-font-color1);
  background: var(--jp-layout-color1);
  font-size: var(--jp-ui-font-size1);
}

.jgpu-Section {
  overflow-y: auto;
}

.jgpu-Section > div {
  padding: 8px 12px;
}

.jgpu-Row {
  display: flex;
  align-items: center;
  justify-content: space-between;
  gap: 8px;
  min-height: 20px;
}

.jgpu-Figure {
  color: var(--jp-ui-font-color1);
  font-variant-numeric: tabular-nums;
  text-align: right;
}

.jgpu-Row > :first-child {
  white-space: nowrap;
}

.jgpu-Row > :first-child:not(.jgpu-Name) {
  color: var(--jp-ui-font-color2);
}

.jgpu-Name {
  display: flex;
  align-items: center;
  gap: 4px;
  min-width: 0;
  overflow: hidden;
  overflow-wrap: anywhere;
}

.jgpu-State {
  margin: 0;
  font-size: var(--jp-ui-font-size2);
  font-weight: 600;
}

.jgpu-State {
  display: flex;
  align-items: center;
}

.jgpu-State > span::first-letter {
  text-transform: uppercase;
}

.jgpu-State::before {
  display: inline-block;
  width: 8px;
  height: 8px;
  margin-right: 6px;
  background: var(--jp-layout-color4);
  border-radius: 50%;
  content: '';
}

.jgpu-State[data-jgpu-state='running']::before {
  background: var(--jp-success-color1);
}

.jgpu-State[data-jgpu-state='waiting']::before {
  background: var(--jp-warn-color1);
}

.jgpu-State[data-jgpu-state='lost']::before {
  background: var(--jp-error-color1);
}

.jgpu-Note,
.jgpu-Empty {
  margin: 2px 0 6px;
  color: var(--jp-ui-font-color2);
}

.jgpu-Stale {
  margin: 0;
  padding: 8px 12px;
  color: var(--jp-ui-font-color1);
  background: var(--jp-layout-color2);
  border-left: 3px solid var(--jp-warn-color1);
}

.jgpu-Meter {
  margin-bottom: 6px;
}

.jgpu-Bar {
  display: flex;
  height: 6px;
  overflow: hidden;
  background: var(--jp-layout-color3);
  border-radius: 3px;
}

.jgpu-Bar > span {
  background: var(--jp-brand-color1);
}

.jgpu-Bar > .jgpu-mod-full {
  background: var(--jp-warn-color1);
}

.jgpu-Bar.jgpu-mod-split {
  margin: 4px 0;
}

.jgpu-Mark {
  display: inline-block;
  width: 8px;
  height: 8px;
  margin-right: 6px;
  border-radius: 2px;
}

.jgpu-Bar > .jgpu-mod-model,
.jgpu-Mark.jgpu-mod-model,
.jgpu-Mark.jgpu-mod-own {
  background: var(--jp-brand-color1);
}

.jgpu-Bar > .jgpu-mod-kept,
.jgpu-Mark.jgpu-mod-kept {
  background: var(--jp-brand-color3);
}

.jgpu-Bar > .jgpu-mod-spilled,
.jgpu-Mark.jgpu-mod-spilled,
.jgpu-Mark.jgpu-mod-other {
  background: var(--jp-layout-color4);
}

.jgpu-Kernel .jgpu-Row + .jgpu-Row {
  flex-wrap: wrap;
}

.jgpu-Kernel .jgpu-Buttons {
  flex-wrap: nowrap;
  margin-left: auto;
}

.jgpu-Kernel .jgpu-Note {
  margin: 0;
  white-space: nowrap;
}

.jgpu-Buttons {
  display: flex;
  flex-wrap: wrap;
  gap: 4px;
  align-items: center;
}

.jgpu-Section > div > .jgpu-Buttons {
  margin-top: 6px;
}

.jgpu-Button.jp-Button.jp-mod-small {
  min-height: 20px;
  padding: 0 5px;
  font-size: var(--jp-ui-font-size0);
  color: var(--jp-ui-font-color1);
  background: var(--jp-layout-color2);
  border: var(--jp-border-width) solid var(--jp-border-color2);
}

.jgpu-List {
  margin: 0;
  padding: 0;
  list-style: none;
}

.jgpu-Kernel + .jgpu-Kernel {
  margin-top: 4px;
  padding-top: 4px;
  border-top: var(--jp-border-width) solid var(--jp-border-color2);
}

.jgpu-Strip {
  shape-rendering: crispEdges;
  display: block;
  width: 100%;
  height: 12px;
  margin-bottom: 2px;
  background: var(--jp-layout-color2);
  border-radius: 2px;
}

.jgpu-Strip .jgpu-mod-own {
  fill: var(--jp-brand-color1);
}

.jgpu-Strip .jgpu-mod-other {
  fill: var(--jp-layout-color4);
}

.jgpu-Legend {
  font-size: var(--jp-ui-font-size0);
}

.jgpu-Legend .jgpu-mod-other {
  margin-left: 10px;
}

.jgpu-Section .jp-sortable-table {
  width: 100%;
}

.jgpu-Section .jp-sortable-table th,
.jgpu-Section .jp-sortable-table td {
  padding: 2px 4px;
}

.jgpu-Section .jp-sortable-table .jgpu-Name {
  display: block;
  max-width: 90px;
  overflow: hidden;
  text-overflow: ellipsis;
  white-space: nowrap;
}

/* Where a person's own few colours replace the theme's, what is told by colour alone keeps it. */
@media (forced-colors: active) {
  .jgpu-Bar,
  .jgpu-Mark,
  .jgpu-State::before,
  .jgpu-Strip {
    forced-color-adjust: none;
    border: 1px solid CanvasText;
  }
}
`,""]),o.d(r,{},{A:n})},842(e,r,o){var t=o(601),a=o.n(t),p=o(314),n=(o.n(p))()(a());n.push([e.id,`.jgpu-Status > div,
.jgpu-Status {
  display: flex;
  align-items: center;
}

.jp-Toolbar .jgpu-Status {
  padding: 0 6px;
}

.jgpu-Status.lm-mod-hidden {
  display: none;
}

.jgpu-Status [role='button'] {
  cursor: pointer;
}

.jgpu-Status [role='button']:focus-visible {
  outline: var(--jp-border-width) solid var(--jp-brand-color1);
  outline-offset: -1px;
}

.jgpu-Status [data-jgpu-state='waiting'] .jp-StatusBar-TextItem,
.jgpu-Status [data-jgpu-state='lost'] .jp-StatusBar-TextItem {
  font-weight: 600;
}

/* Heard, not seen. */
.jgpu-Spoken {
  position: absolute;
  width: 1px;
  height: 1px;
  overflow: hidden;
  clip-path: inset(50%);
  white-space: nowrap;
}

.jgpu-mod-stale {
  opacity: 0.55;
}

.jgpu-Below {
  position: fixed;
  z-index: 10000;
  overflow: auto;
}

.jgpu-Details {
  width: 300px;
  padding: 8px 12px;
  color: var(--jp-ui-font-color1);
  background: var(--jp-layout-color1);
  font-size: var(--jp-ui-font-size1);
  border: var(--jp-border-width) solid var(--jp-border-color1);
  border-radius: var(--jp-border-radius);
  box-shadow: var(--jp-elevation-z6);
}

.jgpu-Details h3 {
  margin: 0 0 4px;
  font-size: var(--jp-ui-font-size2);
  font-weight: 600;
}

.jgpu-Details p {
  margin: 0 0 8px;
  color: var(--jp-ui-font-color2);
}

@media (forced-colors: active) {
  .jgpu-Status [role='progressbar'] {
    forced-color-adjust: none;
    border: 1px solid CanvasText;
  }
}
`,""]),o.d(r,{},{A:n})},314(e){e.exports=function(e){var r=[];return r.toString=function(){return this.map(function(r){var o="",t=void 0!==r[5];return r[4]&&(o+="@supports (".concat(r[4],") {")),r[2]&&(o+="@media ".concat(r[2]," {")),t&&(o+="@layer".concat(r[5].length>0?" ".concat(r[5]):""," {")),o+=e(r),t&&(o+="}"),r[2]&&(o+="}"),r[4]&&(o+="}"),o}).join("")},r.i=function(e,o,t,a,p){"string"==typeof e&&(e=[[null,e,void 0]]);var n={};if(t)for(var i=0;i<this.length;i++){var u=this[i][0];null!=u&&(n[u]=!0)}for(var l=0;l<e.length;l++){var d=[].concat(e[l]);t&&n[d[0]]||(void 0!==p&&(void 0===d[5]||(d[1]="@layer".concat(d[5].length>0?" ".concat(d[5]):""," {").concat(d[1],"}")),d[5]=p),o&&(d[2]&&(d[1]="@media ".concat(d[2]," {").concat(d[1],"}")),d[2]=o),a&&(d[4]?(d[1]="@supports (".concat(d[4],") {").concat(d[1],"}"),d[4]=a):d[4]="".concat(a)),r.push(d))}},r}},601(e){e.exports=function(e){return e[1]}},665(e,r,o){o.r(r);var t=o(72),a=o.n(t),p=o(825),n=o.n(p),i=o(659),u=o.n(i),l=o(56),d=o.n(l),s=o(540),c=o.n(s),g=o(113),j=o.n(g),f=o(646),v={};v.styleTagTransform=j(),v.setAttributes=d(),v.insert=u().bind(null,"head"),v.domAPI=n(),v.insertStyleElement=c(),a()(f.A,v);let h=f.A&&f.A.locals?f.A.locals:void 0;o.d(r,{},{default:h})},72(e){var r=[];function o(e){for(var o=-1,t=0;t<r.length;t++)if(r[t].identifier===e){o=t;break}return o}function t(e,t){for(var a={},p=[],n=0;n<e.length;n++){var i=e[n],u=t.base?i[0]+t.base:i[0],l=a[u]||0,d="".concat(u," ").concat(l);a[u]=l+1;var s=o(d),c={css:i[1],media:i[2],sourceMap:i[3],supports:i[4],layer:i[5]};if(-1!==s)r[s].references++,r[s].updater(c);else{var g=function(e,r){var o=r.domAPI(r);return o.update(e),function(r){r?(r.css!==e.css||r.media!==e.media||r.sourceMap!==e.sourceMap||r.supports!==e.supports||r.layer!==e.layer)&&o.update(e=r):o.remove()}}(c,t);t.byIndex=n,r.splice(n,0,{identifier:d,updater:g,references:1})}p.push(d)}return p}e.exports=function(e,a){var p=t(e=e||[],a=a||{});return function(e){e=e||[];for(var n=0;n<p.length;n++){var i=o(p[n]);r[i].references--}for(var u=t(e,a),l=0;l<p.length;l++){var d=o(p[l]);0===r[d].references&&(r[d].updater(),r.splice(d,1))}p=u}}},659(e){var r={};e.exports=function(e,o){var t=function(e){if(void 0===r[e]){var o=document.querySelector(e);if(window.HTMLIFrameElement&&o instanceof window.HTMLIFrameElement)try{o=o.contentDocument.head}catch(e){o=null}r[e]=o}return r[e]}(e);if(!t)throw Error("Couldn't find a style target. This probably means that the value for the 'insert' parameter is invalid.");t.appendChild(o)}},540(e){e.exports=function(e){var r=document.createElement("style");return e.setAttributes(r,e.attributes),e.insert(r,e.options),r}},56(e,r,o){e.exports=function(e){var r=o.nc;r&&e.setAttribute("nonce",r)}},825(e){e.exports=function(e){if("u"<typeof document)return{update:function(){},remove:function(){}};var r=e.insertStyleElement(e);return{update:function(o){var t,a,p;t="",o.supports&&(t+="@supports (".concat(o.supports,") {")),o.media&&(t+="@media ".concat(o.media," {")),(a=void 0!==o.layer)&&(t+="@layer".concat(o.layer.length>0?" ".concat(o.layer):""," {")),t+=o.css,a&&(t+="}"),o.media&&(t+="}"),o.supports&&(t+="}"),(p=o.sourceMap)&&"u">typeof btoa&&(t+="\n/*# sourceMappingURL=data:application/json;base64,".concat(btoa(unescape(encodeURIComponent(JSON.stringify(p))))," */")),e.styleTagTransform(t,r,e.options)},remove:function(){var e;null===(e=r).parentNode||e.parentNode.removeChild(e)}}}},113(e){e.exports=function(e,r){if(r.styleSheet)r.styleSheet.cssText=e;else{for(;r.firstChild;)r.removeChild(r.firstChild);r.appendChild(document.createTextNode(e))}}}}]);